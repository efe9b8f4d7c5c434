"""An HTTP proxy between an agent and its S3 server, which does to requests what a test asks for.

    with S3ProxyProcess(upstream=server.endpoint, log=tmp_path / "proxy.log") as proxy:
        proxy.set_rules(Rule(fault="slow_down", operations=["put"], percent=10))
        ... environment(proxy.endpoint) ...
        proxy.counts()["operations"]["put"]

It understands HTTP/1.1 as far as S3 clients use it, changes no byte of a request (signatures
stay right), and knows S3's operations by method and query. Rules are tried in order; the first
that matches and whose chance falls decides. Delays add up with faults. Rules are changed while it
runs through a second port (JSON over HTTP), from the test or from any other process.

| fault | what happens |
| --- | --- |
| slow_down | 503 SlowDown; the request does not reach the server |
| error | 500 InternalError; likewise |
| unsettled | 409 ConditionalRequestConflict; likewise |
| reset | the connection is reset before the request reaches the server |
| lost_reply | the request is carried out, then the connection is reset |
| cut_body | half of the answer's body, then a reset |
| slow_body | the answer's body comes at `bytes_per_s` |
| hang | the request is taken, nothing is ever answered |
| none | nothing; with `delay_*` it only delays |

Run as a module it prints one line of JSON with its two ports, and serves until it is ended.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import http.client
import json
import math
import os
import random
import re
import signal
import socket
import struct
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from support.listeners import close_listener

OPERATIONS = (
    "put",
    "get",
    "head",
    "list",
    "delete",
    "part",
    "multipart_start",
    "multipart_end",
    "multipart_abort",
    "other",
)
FAULTS = (
    "none",
    "slow_down",
    "error",
    "unsettled",
    "reset",
    "lost_reply",
    "cut_body",
    "slow_body",
    "hang",
)
_ERRORS = {
    "slow_down": ("503 Slow Down", "SlowDown"),
    "error": ("500 Internal Server Error", "InternalError"),
    "unsettled": ("409 Conflict", "ConditionalRequestConflict"),
}
_HEAD_BYTES_MAX = 64 << 10
_CHUNK_BYTES = 64 << 10
_P99_SIGMAS = 2.3263


@dataclass
class Rule:
    """What happens to some requests.

    Args:
        fault: one of FAULTS.
        operations: of OPERATIONS; empty: all.
        key: a regular expression that is searched in the path.
        percent: chance that a matching request is hit.
        count: how many are hit at most; None: no bound.
        skip: how many matching requests pass first.
        delay_ms_median, delay_ms_p99: an answer comes no sooner after its request than a
            log-normal delay of this median and 99th percentile; 0: at once.
        bytes_per_s: of slow_body.
    """

    fault: str = "none"
    operations: list[str] = field(default_factory=list)
    key: str = ""
    percent: float = 100.0
    count: int | None = None
    skip: int = 0
    delay_ms_median: float = 0.0
    delay_ms_p99: float = 0.0
    bytes_per_s: int = 100_000

    def __post_init__(self) -> None:
        assert self.fault in FAULTS, self.fault
        assert set(self.operations) <= set(OPERATIONS), self.operations


def s3_delays(median_ms: float = 30.0, p99_ms: float = 100.0) -> Rule:
    """Delays as S3's; put it last, since rules are tried in order."""
    return Rule(delay_ms_median=median_ms, delay_ms_p99=p99_ms)


@dataclass
class _Head:
    """A parsed head: first line and headers, with their bytes as they came."""

    raw: bytes
    first: str
    headers: dict[str, str]

    @property
    def body_bytes(self) -> int | None:
        value = self.headers.get("content-length")
        return None if value is None else int(value)

    @property
    def is_chunked(self) -> bool:
        return "chunked" in self.headers.get("transfer-encoding", "").lower()


class S3Proxy:
    """The proxy on the running event loop: `start`, then `close`."""

    def __init__(self, upstream: str, *, seed: int = 0) -> None:
        """
        Args:
            upstream: http://HOST:PORT of the S3 server.
            seed: of delays and chances.
        """
        url = urlsplit(upstream)
        assert url.hostname is not None
        self._upstream = (url.hostname, url.port or 80)
        self._random = random.Random(seed)
        self.rules: list[Rule] = []
        self.refusing = False
        """While true every connection is reset: the store is away."""
        self.operations: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.bytes_up = 0
        self.bytes_down = 0
        self.port = 0
        self.control_port = 0
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def endpoint(self) -> str:
        """http://HOST:PORT for S3 clients."""
        return f"http://127.0.0.1:{self.port}"

    async def start(self, port: int = 0, control_port: int = 0) -> None:
        """Listen on loopback."""
        data = await asyncio.start_server(self._serve, "127.0.0.1", port, limit=_HEAD_BYTES_MAX)
        control = await asyncio.start_server(self._control, "127.0.0.1", control_port)
        self._servers = [data, control]
        self.port = data.sockets[0].getsockname()[1]
        self.control_port = control.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Stop; connections are cut."""
        for server in self._servers:
            await close_listener(server)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        # The loop closes a transport's socket in its next turn.
        await asyncio.sleep(0)

    def set_rules(self, *rules: Rule) -> None:
        """Replace all rules."""
        self.rules = list(rules)

    def counts(self) -> dict[str, Any]:
        """What passed so far, by operation and fault."""
        return {
            "operations": dict(self.operations),
            "faults": dict(self.faults),
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
        }

    # -- the S3 side -------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        try:
            if self.refusing:
                _reset(writer)
                return
            while (head := await _read_head(reader)) is not None:
                if not await self._exchange(head, reader, writer):
                    break
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        except asyncio.CancelledError:
            _reset(writer)
        finally:
            self._tasks.discard(task)
            self._writers.discard(writer)
            writer.close()

    async def _exchange(
        self, head: _Head, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """One request and its answer. Returns: whether the connection goes on."""
        loop = asyncio.get_running_loop()
        arrived_s = loop.time()
        method, target, _ = head.first.split(" ", 2)
        operation = operation_of(method, target)
        self.operations[operation] += 1
        rules = self._choose(operation, target)
        fault = next((rule for rule in rules if rule.fault != "none"), Rule())
        delay_s = sum(self._delay_s(rule) for rule in rules)
        if fault.fault != "none":
            self.faults[fault.fault] += 1
        # A client may only read after it has sent all, so the body is taken first, in any case.
        body = await _read_body(reader, head)
        self.bytes_up += len(body)
        if self.refusing or fault.fault == "reset":
            _reset(writer)
            return False
        if fault.fault == "hang":
            await loop.create_future()
        if fault.fault in _ERRORS:
            await _sleep_until(arrived_s + delay_s)
            writer.write(_error_answer(fault.fault, method))
            await writer.drain()
            return True
        return await self._forward(
            head, body, writer, method=method, fault=fault, answer_at_s=arrived_s + delay_s
        )

    async def _forward(
        self,
        head: _Head,
        body: bytes,
        writer: asyncio.StreamWriter,
        *,
        method: str,
        fault: Rule,
        answer_at_s: float,
    ) -> bool:
        up_reader, up_writer = await asyncio.open_connection(*self._upstream, limit=_HEAD_BYTES_MAX)
        try:
            up_writer.write(head.raw)
            up_writer.write(body)
            await up_writer.drain()
            answer = await _read_head(up_reader)
            while answer is not None and answer.first.split(" ")[1] == "100":
                answer = await _read_head(up_reader)
            if answer is None:
                _reset(writer)
                return False
            payload = b""
            if method != "HEAD" and answer.first.split(" ")[1] not in ("204", "304"):
                payload = await _read_answer_body(up_reader, answer)
        finally:
            up_writer.close()
        if fault.fault == "lost_reply" or self.refusing:
            _reset(writer)
            return False
        await _sleep_until(answer_at_s)
        writer.write(_answer_head(answer, payload, method))
        if fault.fault == "cut_body":
            writer.write(payload[: len(payload) // 2])
            await writer.drain()
            _reset(writer)
            return False
        if fault.fault == "slow_body":
            step = max(1, fault.bytes_per_s // 20)
            for at in range(0, len(payload), step):
                writer.write(payload[at : at + step])
                await writer.drain()
                await asyncio.sleep(0.05)
        else:
            writer.write(payload)
        await writer.drain()
        self.bytes_down += len(payload)
        return True

    def _choose(self, operation: str, target: str) -> list[Rule]:
        """The rules that hit this request: delays of all, and at most one fault."""
        hit: list[Rule] = []
        for rule in self.rules:
            if rule.operations and operation not in rule.operations:
                continue
            if rule.key and not re.search(rule.key, target):
                continue
            if rule.fault != "none" and any(other.fault != "none" for other in hit):
                continue
            if rule.skip > 0:
                rule.skip -= 1
                continue
            if rule.count == 0 or self._random.random() * 100 >= rule.percent:
                continue
            if rule.count is not None:
                rule.count -= 1
            hit.append(rule)
        return hit

    def _delay_s(self, rule: Rule) -> float:
        if not rule.delay_ms_median:
            return 0.0
        spread = max(rule.delay_ms_p99, rule.delay_ms_median) / rule.delay_ms_median
        return (
            self._random.lognormvariate(
                math.log(rule.delay_ms_median), math.log(spread) / _P99_SIGMAS
            )
            / 1000
        )

    # -- the control side --------------------------------------------------------------------------

    async def _control(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await _read_head(reader)
            if head is None:
                return
            method, path, _ = head.first.split(" ", 2)
            body = await _read_body(reader, head)
            if method == "PUT" and path == "/rules":
                self.set_rules(*(Rule(**value) for value in json.loads(body)))
            elif method == "PUT" and path == "/refusing":
                self.refusing = bool(json.loads(body))
                if self.refusing:
                    for open_writer in list(self._writers):
                        _reset(open_writer)
            elif method == "DELETE" and path == "/counts":
                self.operations.clear()
                self.faults.clear()
                self.bytes_up = self.bytes_down = 0
            answer = json.dumps(
                {
                    **self.counts(),
                    "rules": [dataclasses.asdict(rule) for rule in self.rules],
                    "refusing": self.refusing,
                }
            ).encode()
            writer.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n"
                b"content-length: %d\r\n\r\n%b" % (len(answer), answer)
            )
            await writer.drain()
        finally:
            writer.close()


def operation_of(method: str, target: str) -> str:
    """Which S3 operation a request is."""
    url = urlsplit(target)
    query = parse_qs(url.query, keep_blank_values=True)
    if "uploadId" in query:
        return {"PUT": "part", "POST": "multipart_end", "DELETE": "multipart_abort"}.get(
            method, "other"
        )
    if method == "POST":
        if "uploads" in query:
            return "multipart_start"
        return "delete" if "delete" in query else "other"
    has_key = url.path.strip("/").count("/") >= 1
    if method == "GET" and ("list-type" in query or not has_key):
        return "list"
    if not has_key:
        return "other"
    return {"PUT": "put", "GET": "get", "HEAD": "head", "DELETE": "delete"}.get(method, "other")


async def _read_head(reader: asyncio.StreamReader) -> _Head | None:
    try:
        raw = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise
        return None
    first, *lines = raw[:-4].decode("latin-1").split("\r\n")
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    return _Head(raw, first, headers)


async def _read_body(reader: asyncio.StreamReader, head: _Head) -> bytes:
    """A request's body as it lies on the wire, chunk lengths included."""
    if head.is_chunked:
        return await _read_chunked(reader, keep_framing=True)
    return await reader.readexactly(head.body_bytes or 0)


async def _read_answer_body(reader: asyncio.StreamReader, head: _Head) -> bytes:
    """An answer's body, without chunk lengths."""
    if head.is_chunked:
        return await _read_chunked(reader, keep_framing=False)
    if head.body_bytes is not None:
        return await reader.readexactly(head.body_bytes)
    return await reader.read(-1)


async def _read_chunked(reader: asyncio.StreamReader, *, keep_framing: bool) -> bytes:
    parts = []
    while True:
        line = await reader.readuntil(b"\r\n")
        size = int(line.split(b";")[0], 16)
        data = await reader.readexactly(size + 2)
        parts += [line, data] if keep_framing else [data[:-2]]
        if size == 0:
            return b"".join(parts)


def _answer_head(answer: _Head, payload: bytes, method: str) -> bytes:
    _, _, status = answer.first.partition(" ")
    skipped = {"connection", "transfer-encoding", "keep-alive"}
    if method != "HEAD":
        skipped.add("content-length")
    lines = [f"HTTP/1.1 {status}"]
    for line in answer.raw[:-4].decode("latin-1").split("\r\n")[1:]:
        if line.partition(":")[0].strip().lower() not in skipped:
            lines.append(line)
    if method != "HEAD" and status[:3] not in ("204", "304"):
        lines.append(f"content-length: {len(payload)}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def _error_answer(fault: str, method: str) -> bytes:
    status, code = _ERRORS[fault]
    body = (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code>'
        "<Message>Injected.</Message></Error>"
    ).encode()
    head = (
        f"HTTP/1.1 {status}\r\ncontent-type: application/xml\r\ncontent-length: {len(body)}\r\n\r\n"
    ).encode()
    return head if method == "HEAD" else head + body


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close with a reset: what a broken network looks like, unlike an orderly end."""
    raw = writer.get_extra_info("socket")
    if raw is not None:
        with contextlib.suppress(OSError):
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def _sleep_until(at_s: float) -> None:
    seconds = at_s - asyncio.get_running_loop().time()
    if seconds > 0:
        await asyncio.sleep(seconds)


class S3ProxyControl:
    """Steers a proxy of any process through its control port."""

    def __init__(self, control_port: int) -> None:
        self.control_port = control_port

    def set_rules(self, *rules: Rule) -> None:
        """Replace all rules."""
        self._call("PUT", "/rules", [dataclasses.asdict(rule) for rule in rules])

    def refuse(self, *, refusing: bool) -> None:
        """Cut all connections and take no new ones; or be there again."""
        self._call("PUT", "/refusing", refusing)

    def counts(self) -> dict[str, Any]:
        """What passed since the start, or since `clear_counts`."""
        return self._call("GET", "/counts")

    def clear_counts(self) -> None:
        """Count from 0."""
        self._call("DELETE", "/counts")

    def _call(self, method: str, path: str, value: Any = None) -> dict[str, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.control_port, timeout=60)
        try:
            connection.request(method, path, json.dumps(value).encode())
            answer: dict[str, Any] = json.loads(connection.getresponse().read())
            return answer
        finally:
            connection.close()


class S3ProxyProcess(S3ProxyControl):
    """The proxy in a process of its own, so that it never waits for the test's Python."""

    def __init__(self, *, upstream: str, log: Path, seed: int = 0, port: int = 0) -> None:
        super().__init__(0)
        self.upstream = upstream
        self.log = log
        self.seed = seed
        self.port = port
        self.process: subprocess.Popen[str] | None = None

    @property
    def endpoint(self) -> str:
        """http://HOST:PORT for S3 clients."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> S3ProxyProcess:
        """Start it; it listens when this returns."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    __name__,
                    f"--upstream={self.upstream}",
                    f"--seed={self.seed}",
                    f"--port={self.port}",
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])},
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.log.read_text(errors="replace")[-2000:]
        ports = json.loads(line)
        self.port, self.control_port = ports["port"], ports["control_port"]
        return self

    def stop(self) -> None:
        """End it; idempotent."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(60)
            assert self.process.stdout is not None
            self.process.stdout.close()
            self.process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


async def _main(arguments: argparse.Namespace) -> None:
    proxy = S3Proxy(arguments.upstream, seed=arguments.seed)
    if arguments.rules:
        proxy.set_rules(*(Rule(**value) for value in json.loads(arguments.rules)))
    await proxy.start(arguments.port, arguments.control_port)
    print(json.dumps({"port": proxy.port, "control_port": proxy.control_port}), flush=True)
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    await ended.wait()
    await proxy.close()


def main() -> None:
    """Serve until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(description="An S3 proxy with faults.")
    parser.add_argument("--upstream", required=True, help="http://HOST:PORT")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--control-port", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rules", default="", help="JSON array of rules")
    asyncio.run(_main(parser.parse_args()))


if __name__ == "__main__":
    main()
