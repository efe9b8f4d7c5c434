"""The authorization service for tests: databases in memory of a test, and real processes."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from penstock.authz.polar.check import check
from penstock.authz.state.entries import (
    Argument,
    Delete,
    EnvironmentCommand,
    Insert,
    Outcome,
    SetPolicy,
    Write,
)
from support.ports import free_port

REPOSITORY = Path(__file__).resolve().parents[2]
TEST_KEY = "e_0123456789_12345_osotesttoken01xiIn"
READY_S = 60.0
POLICY = """
actor User {}
resource Organization {
  roles = ["admin", "member"];
  permissions = ["read", "invite"];
  "read" if "member";
  "invite" if "admin";
  "member" if "admin";
}
resource Repository {
  roles = ["reader", "maintainer"];
  permissions = ["read", "push"];
  relations = { organization: Organization };
  "read" if "reader";
  "push" if "maintainer";
  "reader" if "maintainer";
  "reader" if "member" on "organization";
  "maintainer" if "admin" on "organization";
}
"""


def argument(text: str) -> Argument:
    """`User:alice`; a text without a type is a String, `User:*` any User, `*` anything."""
    kind, colon, id_ = text.partition(":")
    if text == "*":
        return (None, None)
    if not colon:
        return ("String", text)
    return (kind, None if id_ == "*" else id_)


def insert(predicate: str, *arguments: str) -> Insert:
    return Insert(predicate, tuple(map(argument, arguments)))


def delete(predicate: str, *arguments: str) -> Delete:
    return Delete(predicate, tuple(map(argument, arguments)))


def write(*changes: Insert | Delete, request: bytes = b"") -> Write:
    return Write(request, changes)


def set_policy(source: str, base: int, *, request: bytes = b"") -> SetPolicy:
    signatures = sorted((each.predicate, each.types) for each in check(source).facts)
    return SetPolicy(request, base, "", source, tuple(signatures))


def one(outcomes: list[Outcome]) -> Outcome:
    (outcome,) = outcomes
    return outcome


def commands(*each: EnvironmentCommand) -> tuple[EnvironmentCommand, ...]:
    return each


class AuthzProcess:
    """One `penstock authz serve` process, which may be killed and started again on its data."""

    def __init__(self, data: Path, log: Path, *arguments: str) -> None:
        self.data = data
        self.log = log
        self.arguments = arguments
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        command = [sys.executable, "-m", "penstock", "authz", "serve", "--data", str(self.data)]
        command += ["--http", f"127.0.0.1:{self.port}", *self.arguments]
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src")}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, env=environment
            )
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise AssertionError(f"it ended with {self.process.returncode}: {self.tail()}")
            try:
                if self.call("GET", "/healthz", key="", raw=True)[0] == 200:
                    return
            except OSError:
                time.sleep(0.02)
        raise AssertionError(f"not ready: {self.tail()}")

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(30)

    def stop(self) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    def tail(self) -> str:
        return self.log.read_text("utf-8", "replace")[-4000:]

    def call(
        self,
        method: str,
        path: str,
        content: object = None,
        *,
        key: str = TEST_KEY,
        body: bytes | None = None,
        headers: Iterable[tuple[str, str]] = (),
        raw: bool = False,
    ) -> tuple[int, Any]:
        """Make one call; return status and content."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            sent = body if body is not None else None if content is None else json.dumps(content)
            given = {"Content-Type": "application/json"} if sent is not None else {}
            if key:
                given["Authorization"] = f"Bearer {key}"
            connection.request(method, path, sent, given | dict(headers))
            answer = connection.getresponse()
            text = answer.read()
            return answer.status, text.decode() if raw else json.loads(text)
        finally:
            connection.close()
