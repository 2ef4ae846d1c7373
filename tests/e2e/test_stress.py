"""Slow, malformed and vanishing clients, signals and keys against the running program."""

import json
import pathlib
import re
import signal
import socket
import threading
import urllib.error
import urllib.request

from conftest import Server
from test_process import eventually, metric, status

CHAT = "/v1/chat/completions"


def body(**fields):
    return json.dumps({"messages": [{"role": "user", "content": "Tell me a story."}], "temperature": 0,
                       **fields}).encode()


def post(server, path, data=b"{}", headers=None):
    """Status, headers and JSON of an answer, whatever the status."""
    request = urllib.request.Request(server.url(path), data, headers or {})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.headers, json.loads(answer.read() or b"{}")
    except urllib.error.HTTPError as fault:
        return fault.code, fault.headers, json.loads(fault.read() or b"{}")


def raw(server):
    return socket.create_connection(("127.0.0.1", server.port), timeout=60)


def head(path=CHAT, length=10, extra=""):
    return f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {length}\r\n{extra}\r\n".encode()


def test_malformed_chunk_trailers_do_not_stop_the_server(server):
    for trailer in (b"0\r\nHt:\r\n\n", b"0\r\n \r\n", b"0\r\nA\r\n\r\n", b"0\r\nHt: \x01\r\n\r\n", b"0\n\n"):
        with raw(server) as client:
            client.sendall(b"POST " + CHAT.encode() + b" HTTP/1.1\r\nHost: localhost\r\n"
                           b"Transfer-Encoding: chunked\r\n\r\n" + trailer)
            assert client.recv(100).startswith(b"HTTP/1.1 400 "), trailer
    assert status(server.url("/ready")) == 200


def test_slow_requests_hold_nobody_up(server, client, model):
    """Twenty clients that have sent half a head, or half a body, cost nothing but their sockets."""
    slow = [raw(server) for _ in range(20)]
    for i, loris in enumerate(slow):
        loris.sendall(b"POST / HTTP/1.1\r\nHost: local" if i % 2 else head() + b"{")
    answer = client.chat.completions.create(model=model, messages=[{"role": "user", "content": "Hi"}], max_tokens=4)
    assert answer.usage.completion_tokens <= 4
    for loris in slow:
        loris.close()


def test_a_reader_that_stops_is_cut_off(start_server):
    """What a client does not read is bounded; then it counts as gone, and its sequence ends."""
    server = start_server("--max-running-requests", "4")
    with raw(server) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        # Logprobs make events large enough to fill the buffers of the kernel as well.
        data = body(stream=True, ignore_eos=True, max_tokens=8000, logprobs=True, top_logprobs=20)
        client.sendall(head(length=len(data)) + data)
        eventually(lambda: metric(server, 'nibble_requests_aborted_total{cause="slow_reader"}') == 1, 120)
    eventually(lambda: metric(server, "vllm:num_requests_running") == 0)


def test_overload_gets_429_and_what_was_accepted_is_served(start_server):
    server = start_server("--max-queued-requests", "2", "--max-running-requests", "2", "--deterministic")
    answers = []

    def ask():
        answers.append(post(server, CHAT, body(max_tokens=60, ignore_eos=True)))

    threads = [threading.Thread(target=ask) for _ in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    served = [answer for code, _, answer in answers if code == 200]
    refused = [(headers, answer) for code, headers, answer in answers if code == 429]
    assert len(served) + len(refused) == 40 and len(served) >= 2 and refused
    assert all(answer["usage"]["completion_tokens"] == 60 for answer in served)
    assert len({answer["choices"][0]["message"]["content"] for answer in served}) == 1
    for headers, answer in refused:
        assert 1 <= int(headers["Retry-After"]) <= 60
        assert answer["error"]["code"] == "queue_full"


def test_keys_and_the_admin_port(start_server, tmp_path):
    keys, admin_keys = tmp_path / "keys", tmp_path / "admin"
    keys.write_text("anna\nbert\n")
    admin_keys.write_text("root\n")
    for file in (keys, admin_keys):
        file.chmod(0o600)
    server = start_server("--api-key-file", str(keys), "--admin-api-key-file", str(admin_keys), "--admin-port", "0")
    admin_port = int(re.search(r"admin routes on \S+:(\d+)", "".join(server.log))[1])
    admin = f"http://127.0.0.1:{admin_port}"
    assert post(server, CHAT, body())[0] == 401
    assert post(server, CHAT, body(max_tokens=1), {"Authorization": "Bearer wrong"})[0] == 401
    for headers in ({"Authorization": "Bearer anna"}, {"x-api-key": "bert"}):
        assert post(server, CHAT, body(max_tokens=1), headers)[0] == 200
    assert post(server, "/flush_cache", headers={"Authorization": "Bearer root"})[0] == 404

    def admin_status(key):
        request = urllib.request.Request(admin + "/flush_cache", b"", {"Authorization": f"Bearer {key}"})
        return status(request)

    assert admin_status("anna") == 401
    assert admin_status("root") == 200


def test_a_request_can_be_aborted_by_its_id(server):
    with raw(server) as client:
        data = body(stream=True, ignore_eos=True, max_tokens=8000)
        client.sendall(head(length=len(data), extra="X-Request-Id: to-be-aborted\r\n") + data)
        assert client.recv(10_000)
        eventually(lambda: post(server, "/abort_request", b'{"rid": "to-be-aborted"}')[2]["aborted"] == 1)
        text = b""
        while piece := client.recv(10_000):
            text += piece
            if text.endswith(b"0\r\n\r\n"):
                break
    assert b'"code":"aborted"' in text and b"[DONE]" not in text


def test_a_deadline_ends_a_request(server):
    code, _, answer = post(server, CHAT, body(ignore_eos=True, max_tokens=8000), {"X-Request-Timeout-Ms": "50"})
    assert code == 504 and answer["error"]["code"] == "deadline_exceeded"


def test_the_request_log_has_no_text(start_server, tmp_path):
    log = tmp_path / "requests.jsonl"
    server = start_server("--request-log", str(log))
    assert post(server, CHAT, body(max_tokens=4))[0] == 200
    eventually(lambda: log.exists() and log.read_text().endswith("\n"))
    line = json.loads(log.read_text().splitlines()[0])
    assert line["path"] == CHAT and line["status"] == 200 and line["end"] in ("stop", "length")
    assert line["completion_tokens"] <= 4 and line["prompt_tokens"] > 4
    assert "story" not in log.read_text()


def test_a_crash_leaves_a_report_without_text(start_server, tmp_path):
    server = start_server("--crash-dump-folder", str(tmp_path))
    with raw(server) as client:
        data = body(stream=True, ignore_eos=True, max_tokens=8000)
        client.sendall(head(length=len(data), extra="X-Request-Id: in-flight\r\n") + data)
        assert client.recv(10_000)
        server.signal(signal.SIGSEGV)
        assert server.wait() == -signal.SIGSEGV
    (report,) = pathlib.Path(tmp_path).glob("nibble-crash-*.txt")
    text = report.read_text()
    assert "signal: SIGSEGV" in text and "  in-flight\n" in text and "backtrace:\n" in text
    assert "story" not in text
    assert report.stat().st_mode & 0o777 == 0o600


def test_flags_of_other_servers(start_server):
    server = start_server("--max-num-seqs", "2", "--trust-remote-code", "--tp", "1", "--max-model-len=512")
    assert post(server, CHAT, body(max_tokens=600))[2]["error"]["code"] == "context_length_exceeded"
    log = "".join(server.log)
    assert "--max-num-seqs: here --max-running-requests" in log
    assert "--trust-remote-code: nothing to do" in log


def test_the_port_opens_before_the_model_is_loaded():
    """Between the two lines in the log /health is 200 and /ready is 503; afterwards both are 200."""
    server = Server("--temperature", "0")
    try:
        lines = "".join(server.log)
        assert re.search(r"loading; \S+:\d+ is not ready until then", lines)
        assert lines.index("loading;") < lines.index("listening on")
        assert status(server.url("/health")) == 200 and status(server.url("/ready")) == 200
    finally:
        assert server.stop() == 0
