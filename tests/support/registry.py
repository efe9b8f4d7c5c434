"""A small schema registry over HTTP: Confluent's calls, as far as serializers and tables need them.

Protobuf schemas are given as descriptors and answered with `format=serialized`, since nothing here
compiles `.proto` texts.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

_ids = itertools.count(101)


@dataclass
class Registry:
    """What it holds; `url` once it serves."""

    url: str = ""
    user: str = ""
    """"user:password" in base64, where it asks for one."""
    schemas: dict[int, dict[str, Any]] = field(default_factory=dict)
    versions: dict[str, list[int]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    failures: int = 0
    """How many requests are answered by 503 before one is answered."""

    def register(
        self,
        subject: str,
        schema: Any,
        *,
        kind: str = "AVRO",
        references: list[dict[str, Any]] | None = None,
        schema_id: int = 0,
    ) -> int:
        """A new version; its schema's id. `schema`: text, or what becomes JSON."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        # No id twice in a process: what one means never changes, and is remembered.
        number = schema_id or next(_ids)
        self.schemas[number] = {"schema": text, "references": references or []}
        if kind != "AVRO":
            self.schemas[number]["schemaType"] = kind
        self.versions.setdefault(subject, []).append(number)
        return number

    def answer(self, path: str, authorization: str) -> tuple[int, Any]:
        self.asked.append(path)
        if self.user and authorization != f"Basic {self.user}":
            return 401, {"error_code": 401, "message": "Unauthorized"}
        if self.failures:
            self.failures -= 1
            return 503, {"error_code": 50301, "message": "not now"}
        parts = [unquote(part) for part in urlsplit(path).path.strip("/").split("/")]
        if parts[:2] == ["schemas", "ids"] and int(parts[2]) in self.schemas:
            return 200, self.schemas[int(parts[2])]
        if parts[0] == "subjects" and parts[1] in self.versions:
            ids = self.versions[parts[1]]
            version = int(parts[3])
            if version <= len(ids):
                found = self.schemas[ids[version - 1]]
                return 200, {"subject": parts[1], "version": version, **found}
        return 404, {"error_code": 40403, "message": "Schema not found"}


@contextmanager
def serve_registry() -> Iterator[Registry]:
    """A registry on a free port of the loopback."""
    registry = Registry()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            status, answer = registry.answer(self.path, self.headers.get("authorization", ""))
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("content-type", "application/vnd.schemaregistry.v1+json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    registry.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
