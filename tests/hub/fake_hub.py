"""A model hub for tests: real HTTP on loopback, one hub and one storage host, faults by a seeded script.

The hub answers /api/models/... and redirects large files to the storage host, which is another origin
(127.0.0.2 instead of 127.0.0.1) and demands a signature that expires. Faults are drawn per request from a seeded
generator, so a run repeats exactly for a single connection and statistically for several.
"""
import hashlib
import http.server
import json
import random
import re
import socket
import ssl
import threading
import time
import urllib.parse


def git_oid(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class RepoFile:
    def __init__(self, path, data, is_lfs):
        self.path = path
        self.data = data
        self.is_lfs = is_lfs
        self.etag = hashlib.sha256(data).hexdigest() if is_lfs else git_oid(data)

    def tree_entry(self):
        entry = {"type": "file", "path": self.path, "size": len(self.data), "oid": git_oid(self.data)}
        if self.is_lfs:
            entry["lfs"] = {"oid": self.etag, "size": len(self.data), "pointerSize": 134}
        return entry


class Faults:
    """What goes wrong. Probabilities are per request to the storage host unless a name says otherwise."""

    def __init__(self, seed=0, **settings):
        self.random = random.Random(seed)
        self.lock = threading.Lock()
        self.cut = 0.0  # body ends at a random byte
        self.status = {}  # status -> probability
        self.retry_after = None  # header sent with 429 and 503
        self.wrong_byte = 0.0  # one byte of the body flipped
        self.wrong_byte_always = False  # byte 1000 of every file flipped
        self.wrong_length = 0.0  # Content-Range and Content-Length of a longer file
        self.changed_etag = 0.0  # another ETag
        self.hub_etag = None  # X-Linked-Etag of every answer of the hub
        self.ignore_ranges = False  # 200 with the whole file
        self.slow_seconds = 0.0  # pause after each of slow_pieces pieces
        self.slow_pieces = 0
        self.stall_first = 0  # requests that get headers and then nothing
        self.expire_after = None  # uses of a signature before it is refused
        self.hub_status = {}  # status -> probability, for the hub itself
        self.stop_after_bytes = None  # cut there, 503 from then on
        self.throttle = 0  # bytes per second and connection; 0: none
        self.limit = None  # faults of probability in all; None: no limit
        for name, value in settings.items():
            assert hasattr(self, name), name
            setattr(self, name, value)

    def happens(self, probability):
        with self.lock:
            return self.random.random() < probability and self.spend()

    def pick(self, table):
        with self.lock:
            draw = self.random.random()
            for status, probability in table.items():
                if draw < probability:
                    return status if self.spend() else None
                draw -= probability
        return None

    def spend(self):
        """Whether one more fault is allowed."""
        if self.limit is None:
            return True
        self.limit -= 1
        return self.limit >= 0

    def below(self, limit):
        with self.lock:
            return self.random.randrange(limit)


class FakeHub:
    """Use as a context manager. `requests` records (host, path, range, authorization, status).

    `certificate` and `storage_certificate` (default: the same) are files with a key and a certificate: HTTPS.
    """

    def __init__(self, files=(), repo="acme/tiny", commit="c" * 40, faults=None, page_size=1000, token=None,
                 gated=False, extra_entries=(), certificate=None, storage_certificate=None):
        self.files = {file.path: file for file in files}
        self.repo = repo
        self.commit = commit
        self.faults = faults or Faults()
        self.page_size = page_size
        self.token = token
        self.gated = gated
        self.extra_entries = list(extra_entries)
        self.certificate = certificate
        self.storage_certificate = storage_certificate or certificate
        self.redirect_to = None  # an origin that replaces the storage host
        self.requests = []
        self.lock = threading.Lock()
        self.signatures = {}
        self.body_bytes = 0
        self.stalls_left = self.faults.stall_first

    def __enter__(self):
        self.hub = Server(("127.0.0.1", 0), HubHandler, self, self.certificate)
        self.storage = Server(("127.0.0.2", 0), StorageHandler, self, self.storage_certificate)
        for server in (self.hub, self.storage):
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_):
        for server in (self.hub, self.storage):
            server.shutdown()
            server.server_close()

    @property
    def endpoint(self):
        return self.hub.origin

    @property
    def storage_origin(self):
        return self.redirect_to or self.storage.origin

    def record(self, *request):
        with self.lock:
            self.requests.append(request)

    def sign(self):
        with self.lock:
            signature = "%08x" % len(self.signatures)
            self.signatures[signature] = 0
            return signature

    def use_signature(self, signature):
        """Whether it is still good."""
        with self.lock:
            if signature not in self.signatures:
                return False
            self.signatures[signature] += 1
            limit = self.faults.expire_after
            return limit is None or self.signatures[signature] <= limit


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, address, handler, hub, certificate=None):
        super().__init__(address, handler)
        self.state = hub
        self.origin = "%s://%s:%d" % ("https" if certificate else "http", *self.server_address)
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            # The handshake is part of the first read, in the thread of the connection.
            self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)

    def handle_error(self, request, client_address):
        pass  # clients hang up; that is the point


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    @property
    def state(self):
        return self.server.state

    def log_message(self, *_):
        pass

    def do_HEAD(self):  # other clients ask for the headers first
        self.do_GET()

    def log_answer(self, status):
        self.state.record(self.headers.get("Host"), self.path, self.headers.get("Range"),
                          self.headers.get("Authorization"), status)

    def answer(self, status, headers=(), body=b""):
        self.log_answer(status)
        self.send_response_only(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def answer_json(self, document, headers=()):
        self.answer(200, [("Content-Type", "application/json"), *headers], json.dumps(document).encode())

    def range_of(self, size):
        """(begin, end, is_partial), or None when it cannot be satisfied."""
        text = self.headers.get("Range")
        if text is None or self.state.faults.ignore_ranges:
            return 0, size, False
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", text)
        begin = int(match.group(1))
        end = min(size, int(match.group(2)) + 1 if match.group(2) else size)
        return (begin, end, True) if begin < end else None

    def answer_file(self, file, headers):
        faults = self.state.faults
        size = len(file.data)
        span = self.range_of(size)
        if span is None:
            return self.answer(416, [("Content-Range", "bytes */%d" % size)])
        begin, end, is_partial = span
        body = bytearray(file.data[begin:end])
        claimed = size
        if faults.happens(faults.wrong_length):
            claimed = size + 4096
        if body and faults.happens(faults.wrong_byte):
            body[faults.below(len(body))] ^= 0x40
        if faults.wrong_byte_always and begin <= 1000 < end:
            body[1000 - begin] ^= 0x40
        self.log_answer(206 if is_partial else 200)
        self.send_response_only(206 if is_partial else 200)
        for name, value in headers:
            self.send_header(name, value)
        if is_partial:
            self.send_header("Content-Range", "bytes %d-%d/%d" % (begin, end - 1, claimed))
            self.send_header("Content-Length", str(end - begin))
        else:
            self.send_header("Content-Length", str(claimed))
        self.end_headers()
        if self.command != "HEAD":
            self.send_body(bytes(body))

    def send_body(self, body):
        faults = self.state.faults
        with self.state.lock:
            is_stalled = self.state.stalls_left > 0
            self.state.stalls_left -= is_stalled
        if is_stalled:
            self.wfile.write(body[:100])
            self.wfile.flush()
            time.sleep(5)
            self.close_connection = True
            return
        length = len(body)
        if body and faults.happens(faults.cut):
            length = faults.below(len(body))
        if faults.stop_after_bytes is not None:
            length = min(length, max(0, faults.stop_after_bytes - self.state.body_bytes))
        if length < len(body):
            self.write(body[:length])
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        if faults.slow_pieces:
            step = max(1, len(body) // faults.slow_pieces)
            for at in range(0, len(body), step):
                self.write(body[at:at + step])
                time.sleep(faults.slow_seconds)
            return
        step = 16384
        at = 0
        while faults.throttle and at < len(body):  # a test may lift it on the way
            self.write(body[at:at + step])
            time.sleep(step / max(1, faults.throttle))
            at += step
        self.write(body[at:])

    def write(self, data):
        self.wfile.write(data)
        with self.state.lock:
            self.state.body_bytes += len(data)


class HubHandler(Handler):
    def do_GET(self):
        state = self.state
        url = urllib.parse.urlsplit(self.path)
        path = urllib.parse.unquote(url.path)
        status = state.faults.pick(state.faults.hub_status)
        if status is not None:
            headers = [("Retry-After", str(state.faults.retry_after))] if state.faults.retry_after is not None else []
            return self.answer(status, headers)
        if state.token is not None and self.headers.get("Authorization") != "Bearer " + state.token:
            code = "GatedRepo" if state.gated else "RepoNotFound"
            return self.answer(403 if state.gated else 401,
                               [("X-Error-Code", code), ("X-Error-Message", "Access is restricted.")])
        api = "/api/models/%s/" % state.repo
        if path.startswith(api + "revision/"):
            return self.answer_revision(path[len(api + "revision/"):])
        if path.startswith(api + "tree/"):
            return self.answer_tree(path[len(api + "tree/"):], urllib.parse.parse_qs(url.query))
        resolve = "/%s/resolve/" % state.repo
        if path.startswith(resolve):
            commit, _, name = path[len(resolve):].partition("/")
            return self.answer_resolve(commit, name)
        return self.answer(401, [("X-Error-Code", "RepoNotFound"), ("X-Error-Message", "Repository not found")])

    def answer_revision(self, revision):
        if revision not in ("main", "refs/pr/1", self.state.commit):
            return self.answer(404, [("X-Error-Code", "RevisionNotFound"),
                                     ("X-Error-Message", "Invalid rev id: " + revision)])
        return self.answer_json({"id": self.state.repo, "sha": self.state.commit, "siblings": []})

    def answer_tree(self, commit, query):
        entries = [{"type": "directory", "path": "sub", "oid": "d" * 40, "size": 0}]
        entries += [file.tree_entry() for file in self.state.files.values()] + self.state.extra_entries
        begin = int(query.get("cursor", ["0"])[0])
        end = begin + self.state.page_size
        headers = []
        if end < len(entries):
            target = "%s/api/models/%s/tree/%s?recursive=true&expand=false&cursor=%d" % (
                self.state.endpoint, self.state.repo, commit, end)
            headers.append(("Link", '<%s>; rel="next"' % target))
        return self.answer_json(entries[begin:end], headers)

    def answer_resolve(self, commit, name):
        state = self.state
        file = state.files.get(name)
        if commit != state.commit or file is None:
            return self.answer(404, [("X-Error-Code", "EntryNotFound")])
        etag = state.faults.hub_etag or file.etag
        headers = [("X-Repo-Commit", state.commit)]
        if not file.is_lfs:
            return self.answer_file(file, headers + [("ETag", '"%s"' % etag)])
        location = "%s/blobs/%s?signature=%s" % (state.storage_origin, urllib.parse.quote(name), state.sign())
        headers += [("X-Linked-Etag", '"%s"' % etag), ("X-Linked-Size", str(len(file.data))),
                    ("ETag", 'W/"pointer"'), ("Location", location)]
        return self.answer(302, headers, b"Found. Redirecting")


class StorageHandler(Handler):
    def do_GET(self):
        state = self.state
        url = urllib.parse.urlsplit(self.path)
        file = state.files.get(urllib.parse.unquote(url.path[len("/blobs/"):]))
        signature = urllib.parse.parse_qs(url.query).get("signature", [""])[0]
        if file is None:
            return self.answer(404)
        if not state.use_signature(signature):
            return self.answer(403, [], b"<Error><Code>AccessDenied</Code></Error>")
        status = state.faults.pick(state.faults.status)
        limit = state.faults.stop_after_bytes
        if limit is not None and state.body_bytes >= limit:
            status = 503
        if status is not None:
            headers = [("Retry-After", str(state.faults.retry_after))] if state.faults.retry_after is not None else []
            return self.answer(status, headers, b"busy")
        etag = "tag-%s" % file.etag[:8]
        if state.faults.happens(state.faults.changed_etag):
            etag = "tag-other"
        return self.answer_file(file, [("ETag", '"%s"' % etag)])
