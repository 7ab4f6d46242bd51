"""Answers the pages by which a llama-server is known. For tests; it generates nothing."""

import http.server
import json
import sys

PAGES = {
    "/props": {
        "total_slots": 2,
        "model_path": "/models/tiny.gguf",
        "model_alias": "tiny",
        "build_info": "b10434-0123abc",
        "default_generation_settings": {"n_ctx": 4096},
    },
    "/v1/models": {"object": "list", "data": [{"id": "tiny", "owned_by": "llamacpp"}]},
    "/slots": [{"id": 0, "speculative": False}, {"id": 1, "speculative": False}],
}


class Pages(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        page = PAGES.get(self.path)
        body = json.dumps(page if page is not None else {"error": "not found"}).encode()
        self.send_response(200 if page is not None else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.ThreadingHTTPServer(("127.0.0.1", port), Pages).serve_forever()
