"""A second server that speaks the OpenAI protocol, with faults on demand. Counts words as tokens."""
import http.server
import json
import threading
import time

TEMPLATE_TOKENS = 3  # what a chat template would add


class Listener(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request, client_address):
        pass  # clients that leave are part of the tests


class SecondServer:
    def __init__(self, **settings):
        self.settings = {
            "models": ["second/model"],  # None: no such route
            "key": None,
            "usage": True,
            "tokens_per_event": 1,
            "token_seconds": 0.0,
            "faults_after": 0,  # requests that succeed before the first of these:
            "refusals": 0,  # 429, so many times
            "fault": None,  # for the rest: error_event, cut, garbage or status_500
        } | settings
        self.bodies = []
        self.paths = []
        self.num_active = 0
        self.max_active = 0
        self.lock = threading.Lock()
        self.http = Listener(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def stop(self):
        self.http.shutdown()
        self.http.server_close()

    def _handler(self):
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_GET(self):
                if not self.admit():
                    return
                models = server.settings["models"]
                if self.path != "/v1/models" or models is None:
                    return self.send_json(404, {"error": {"message": "no such route"}})
                self.send_json(200, {"object": "list", "data": [{"id": name} for name in models]})

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"] or 0))
                server.paths.append(self.path)
                if not self.admit():
                    return
                if self.path in ("/flush_cache", "/start_profile", "/stop_profile"):
                    return self.send_json(200, {})
                request = json.loads(body)
                with server.lock:
                    server.bodies.append(request)
                    index = len(server.bodies)
                    server.num_active += 1
                    server.max_active = max(server.max_active, server.num_active)
                try:
                    self.complete(request, index)
                finally:
                    with server.lock:
                        server.num_active -= 1

            def admit(self):
                key = server.settings["key"]
                if key is None or self.headers["Authorization"] == f"Bearer {key}":
                    return True
                self.send_json(401, {"error": {"message": "no entry", "code": "invalid_api_key"}})
                return False

            def complete(self, request, index):
                faulty = index > server.settings["faults_after"]
                with server.lock:
                    refuse = faulty and server.settings["refusals"] > 0
                    server.settings["refusals"] -= refuse
                if refuse:
                    return self.send_json(429, {"error": {"message": "queue full"}}, {"Retry-After": "1"})
                if faulty and server.settings["fault"] == "status_500":
                    return self.send_json(500, {"detail": "broke"})
                is_chat = self.path == "/v1/chat/completions"
                text = "".join(m["content"] for m in request["messages"]) if is_chat else request["prompt"]
                usage = {"prompt_tokens": len(text.split()) + (TEMPLATE_TOKENS if is_chat else 0),
                         "completion_tokens": request["max_tokens"]}
                if not request["stream"]:
                    message = {"message": {"content": "word"}} if is_chat else {"text": "word"}
                    return self.send_json(200, {"choices": [message | {"finish_reason": "length"}], "usage": usage})
                self.stream(request, is_chat, usage, server.settings["fault"] if faulty else None)

            def stream(self, request, is_chat, usage, fault):
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Connection", "close")
                self.end_headers()
                if is_chat:
                    self.event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
                left = request["max_tokens"]
                while left > 0:
                    count = min(left, server.settings["tokens_per_event"])
                    left -= count
                    time.sleep(server.settings["token_seconds"] * count)
                    piece = " word" * count
                    self.event({"choices": [{"delta": {"content": piece}} if is_chat else {"text": piece}]})
                    if fault == "error_event":
                        return self.event({"error": {"message": "the model fell over"}})
                    if fault == "garbage":
                        return self.wfile.write(b"data: {{{\n\n")
                    if fault == "cut":
                        return
                self.event({"choices": [{"delta": {}, "text": "", "finish_reason": "length"}]})
                if server.settings["usage"] and request["stream_options"]["include_usage"]:
                    self.event({"choices": [], "usage": usage})
                self.wfile.write(b"data: [DONE]\n\n")

            def event(self, value):
                self.wfile.write(f"data: {json.dumps(value)}\n\n".encode())
                self.wfile.flush()

            def send_json(self, status, value, headers=()):
                body = json.dumps(value).encode()
                self.send_response(status)
                for name, text in dict(headers).items():
                    self.send_header(name, text)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        return Handler
