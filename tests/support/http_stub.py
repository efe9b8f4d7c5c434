"""A small HTTP server in a thread, which answers as a test says."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Answer = tuple[int, bytes]


class Agent:
    """An HTTP server that answers as it is told, and keeps what it was asked.

    Args:
        answer: gives status and body, from the request's number, its handler and its body. 0: the
            connection is closed without; -1: `answer` has answered.
    """

    def __init__(self, answer: Callable[[int, BaseHTTPRequestHandler, bytes], Answer]) -> None:
        self.asked: list[tuple[str, str, dict[str, str], bytes]] = []
        agent = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                length = int(self.headers.get("content-length", 0))
                body = self.rfile.read(length)
                headers = {name.lower(): value for name, value in self.headers.items()}
                agent.asked.append((self.command, self.path, headers, body))
                status, answered = answer(len(agent.asked), self, body)
                if status <= 0:
                    self.close_connection = status == 0
                    return
                self.send_response(status)
                self.send_header("content-length", str(len(answered)))
                self.end_headers()
                self.wfile.write(answered)

            do_POST = do_PUT = do_DELETE = do_GET

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
