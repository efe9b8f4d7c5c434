"""A small Iceberg REST catalog over HTTP, its tables in a SQLite catalog of PyIceberg's.

The calls that the clients of PyIceberg and of Iceberg's Spark make for namespaces, tables and
commits, by the OpenAPI specification of Iceberg; commits are checked by their requirements, as that
specification says.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import CommitTableRequest

_STATUS: dict[type[Exception], int] = {
    CommitFailedException: 409,
    NamespaceAlreadyExistsError: 409,
    TableAlreadyExistsError: 409,
    NoSuchNamespaceError: 404,
    NoSuchTableError: 404,
}


@dataclass
class RestCatalog:
    """What the server is; `token`: what it asks for, if not empty."""

    catalog: SqlCatalog
    url: str = ""
    token: str = ""
    before_answer: Callable[[str], None] = lambda path: None
    """Called behind each commit, before its answer goes: may raise OSError to lose the reply."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, Any]:
        parts = [unquote(part) for part in urlsplit(path).path.strip("/").split("/")][1:]
        try:
            with self.lock:
                return 200, self._call(method, parts, body)
        except tuple(_STATUS) as error:
            status = _STATUS[type(error)]
            return status, {
                "error": {"message": str(error), "type": type(error).__name__, "code": status}
            }

    def _call(self, method: str, parts: list[str], body: bytes) -> Any:
        if parts == ["config"]:
            return {"defaults": {}, "overrides": {}}
        if parts == ["namespaces"] and method == "POST":
            namespace = tuple(json.loads(body)["namespace"])
            self.catalog.create_namespace(namespace)
            return {"namespace": namespace, "properties": {}}
        namespace = tuple(parts[1].split("\x1f"))
        if len(parts) == 2:
            return {
                "namespace": namespace,
                "properties": self.catalog.load_namespace_properties(namespace),
            }
        if len(parts) == 3 and method == "POST":
            given = json.loads(body)
            table = self.catalog.create_table(
                (*namespace, given["name"]),
                schema=Schema.model_validate(given["schema"]),
                partition_spec=PartitionSpec.model_validate(given["partition-spec"]),
                properties=given["properties"],
            )
        else:
            identifier = (*namespace, parts[3])
            table = self.catalog.load_table(identifier)
            if method == "POST":
                # Its path names the table: Iceberg's own client says it nowhere else.
                named = {"identifier": {"namespace": namespace, "name": parts[3]}}
                commit = CommitTableRequest.model_validate(named | json.loads(body))
                done = self.catalog.commit_table(table, commit.requirements, commit.updates)
                self.before_answer("/".join(parts))
                return json.loads(done.model_dump_json(by_alias=True))
        return {
            "metadata-location": table.metadata_location,
            "metadata": json.loads(table.metadata.model_dump_json()),
            "config": {},
        }


@contextmanager
def serve_rest_catalog(folder: Path, warehouse: str, **properties: str) -> Iterator[RestCatalog]:
    """A catalog on a free port of the loopback."""
    catalog = SqlCatalog(
        "rest", uri=f"sqlite:///{folder / 'rest.db'}", warehouse=warehouse, **properties
    )
    rest = RestCatalog(catalog)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            if rest.token and self.headers.get("authorization") != f"Bearer {rest.token}":
                status, answer = 401, {"error": {"message": "no", "type": "X", "code": 401}}
            else:
                try:
                    status, answer = rest.answer(self.command, self.path, body)
                except OSError:
                    self.close_connection = True
                    return
            data = json.dumps(answer).encode() if self.command != "HEAD" else b""
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_HEAD = do_DELETE = _serve

        def log_message(self, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    rest.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield rest
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        catalog.engine.dispose()
