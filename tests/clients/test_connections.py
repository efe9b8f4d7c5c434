"""Strangers that stay, drip, send half a request or read nothing, to a real server process, on both
ports; a producer and a reader go on meanwhile."""

from __future__ import annotations

import contextlib
import http.client
import os
import resource
import socket
import struct
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.kafka.net.movement import Ending
from support.loopback import FETCH, PRODUCE, api_versions, request
from support.metrics import scrape
from support.probe import Probe, create_topic
from support.server import ServerProcess, running_server
from support.strangers import HALF, PATIENCE_S, Strangers
from support.waiting import eventually

TOPIC = "t"
PARTITIONS = 2
ENDED = "penstock_ended_connections_total"
HTTP_ENDED = "penstock_http_ended_connections_total"
MANY = 10_000
IDLE_KIB_MAX = 12
"""Of memory for an idle connection; docs/operations.md says what was measured."""


@contextlib.contextmanager
def used_server(folder: Path, **settings: str) -> Iterator[ServerProcess]:
    """A server that one client goes on using, whose records all come through."""
    with running_server(folder, settings) as server:
        create_topic(server.bootstrap, TOPIC, PARTITIONS)
        with Probe(server.bootstrap, TOPIC, PARTITIONS) as probe:
            probe.warm_up()
            yield server
            now_s = max(sent.ended_s for sent in probe.sent)
            probe.wait_accepted(now_s)
            probe.wait_served(now_s)
        assert not probe.failed(), probe.failed()[:3]
        assert server.running(), server.tail()


def answers(stranger: socket.socket) -> bool:
    """Whether the server answers one ApiVersions request."""
    try:
        stranger.sendall(api_versions(7))
        return len(stranger.recv(8)) > 0
    except ConnectionError:
        return False


def get(server: ServerProcess, path: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=PATIENCE_S)
    with contextlib.closing(connection):
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
        return answer.status


def resident_kib(server: ServerProcess) -> int:
    """Memory of the server's process, in KiB."""
    assert server.process is not None
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0])


def ended(server: ServerProcess, reason: Ending) -> float:
    return scrape(server.http)[ENDED, reason.value]


def test_counters_of_each_ending_are_there_from_the_start(tmp_path: Path) -> None:
    with running_server(tmp_path, {}) as server:
        found = scrape(server.http)
    for reason in Ending:
        assert found[ENDED, reason.value] == 0
    for reason in ("connections_max", "max_connections_per_ip", "draining"):
        assert found["penstock_refused_connections_total", reason] == 0
    for reason in ("http head", "http body", "http stalled", "http room"):
        assert found[HTTP_ENDED, reason] == 0
    for reason in ("http connections", "http requests", "http bodies"):
        assert found["penstock_http_refused_total", reason] == 0


def test_idle_strangers_take_no_place_and_are_closed_in_time(tmp_path: Path) -> None:
    """50 idle ones filled connections_max for ever."""
    # Long enough for a busy machine to fill it before the first is closed for its idleness.
    settings = {"CONNECTIONS_MAX": "50", "CONNECTIONS_MAX_IDLE_MS": "20000"}
    with used_server(tmp_path, **settings) as server, Strangers() as strangers:
        for _ in range(50):
            strangers.connect(server.kafka_port)
        eventually(lambda: answers(strangers.connect(server.kafka_port)))
        assert ended(server, Ending.ROOM) >= 1
        eventually(lambda: ended(server, Ending.IDLE), lambda count: count >= 1)


def test_dripping_requests_above_the_budget_starve_nobody(tmp_path: Path) -> None:
    with used_server(tmp_path, INFLIGHT_BYTES_MAX="4MiB") as server, Strangers() as strangers:
        dripping = [
            strangers.connect(server.kafka_port, struct.pack(">i", 1 << 20) + bytes(600_000))
            for _ in range(10)
        ]
        stop = threading.Event()

        def drip() -> None:
            while not stop.wait(0.3):
                for stranger in dripping:
                    with contextlib.suppress(OSError):
                        stranger.send(b"x", socket.MSG_DONTWAIT)

        thread = threading.Thread(target=drip)
        thread.start()
        try:
            # No partitions are asked for: what it waits for is the budget.
            fetch = request(FETCH, 4, 1, struct.pack(">iiiibi", -1, 100, 1, 1 << 20, 0, 0))
            assert strangers.connect(server.kafka_port, fetch).recv(8)
            produce = struct.pack(">hhii", -1, 1, 30_000, 0)
            assert strangers.connect(server.kafka_port, request(PRODUCE, 7, 2, produce)).recv(8)
            assert ended(server, Ending.SLOW_REQUEST) >= 1
        finally:
            stop.set()
            thread.join()


def test_a_request_that_drips_is_ended_though_there_is_room(tmp_path: Path) -> None:
    settings = {"REQUEST_RECEIVE_TIMEOUT_MS": "2000"}
    with used_server(tmp_path, **settings) as server, Strangers() as strangers:
        stranger = strangers.connect(server.kafka_port, struct.pack(">i", 1000))

        def drip() -> bool:
            with contextlib.suppress(ConnectionError):
                stranger.send(b"x")
            return ended(server, Ending.LATE_REQUEST) == 1

        eventually(drip)


def test_readers_of_nothing_are_ended_on_both_ports(tmp_path: Path) -> None:
    """Each asks for megabytes, many times over, and takes none of them."""
    with used_server(tmp_path, STALL_TIMEOUT_MS="2000") as server, Strangers() as strangers:
        for _ in range(5):
            strangers.connect(server.kafka_port, api_versions(1) * 30_000, receive_bytes=4096)
            many = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 2000
            strangers.connect(server.http_port, many, receive_bytes=4096)
        eventually(
            lambda: scrape(server.http),
            lambda seen: seen[ENDED, "stalled"] == 5 and seen[HTTP_ENDED, "http stalled"] == 5,
        )


def test_half_requests_keep_neither_health_nor_metrics_waiting(tmp_path: Path) -> None:
    with used_server(tmp_path, HTTP_HEADER_TIMEOUT_MS="3000") as server, Strangers() as strangers:
        assert server.http
        for _ in range(200):
            strangers.connect(server.http_port, HALF)
        for _ in range(5):
            for path in ("/healthz", "/readyz", "/metrics"):
                assert get(server, path) == 200
        assert get(server, "/v1/status") == 200
        eventually(lambda: scrape(server.http), lambda seen: seen[HTTP_ENDED, "http head"] > 100)


def test_a_body_of_200_megabytes_costs_no_memory(tmp_path: Path) -> None:
    with used_server(tmp_path) as server, Strangers() as strangers:
        assert server.http
        get(server, "/metrics")
        before = resident_kib(server)
        head = (
            b"POST /v1/backup HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        stranger = strangers.connect(server.http_port, head)
        piece = b"100000\r\n" + b'{"to":"' + b"a" * ((1 << 20) - 7) + b"\r\n"
        with contextlib.suppress(OSError):
            for _ in range(200):
                stranger.sendall(piece)
        if sys.platform == "linux":
            assert resident_kib(server) - before < 50 << 10
        assert get(server, "/healthz") == 200


# -- 10,000 connections ------------------------------------------------------------------------


HOLD = """
    import resource, socket, sys
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    port, count = map(int, sys.argv[1:])
    held = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(count)]
    print("open", flush=True)
    sys.stdin.read()
"""
AWAY = """
    import socket, sys
    host, *ports = sys.argv[1:]
    held = [socket.create_connection((host, int(port)), timeout=30) for port in ports * 20]
    for half in held[::4]:
        half.sendall(b"\\0\\0\\0\\x64")
    for half in held[1::4]:
        half.sendall(b"GET / HT")
    print("open", flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def holding(script: str, *arguments: object, within: tuple[str, ...] = ()) -> Iterator[None]:
    """A process that has opened its connections and holds them."""
    command = [*within, sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"open\n"
            yield
        finally:
            process.kill()


def most_connections() -> int:
    """10,000, or what the limit of open files leaves a server."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    room = MANY + 1000 if hard == resource.RLIM_INFINITY else hard
    return min(MANY, room - 500)


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_10_000_idle_connections_cost_little_and_hinder_nobody(tmp_path: Path) -> None:
    wanted = most_connections()
    settings = {"CONNECTIONS_MAX": str(wanted)}
    with used_server(tmp_path, **settings) as server, contextlib.ExitStack() as stack:
        before = resident_kib(server)
        # All but those of the client.
        half = (wanted - 20) // 2
        for _ in range(2):
            stack.enter_context(holding(HOLD, server.kafka_port, half))
        eventually(
            lambda: scrape(server.http)["penstock_connections", ""], lambda seen: seen >= 2 * half
        )
        kib = (resident_kib(server) - before) / (2 * half)
        print(f"{2 * half} idle connections: {kib:.2f} KiB each")
        assert kib < IDLE_KIB_MAX
        # One more than there are places finds one.
        with Strangers() as strangers:
            for _ in range(40):
                assert eventually(lambda: answers(strangers.connect(server.kafka_port)))
        assert ended(server, Ending.ROOM) >= 10


# -- half-open ---------------------------------------------------------------------------------


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


@pytest.fixture
def cable() -> Iterator[tuple[str, str, Callable[[], None]]]:
    """A network namespace joined to this one: its name, our address, and what cuts the cable."""
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("network namespaces are root's, on Linux")
    number = os.getpid()
    name, ours, theirs = f"penstock{number}", f"ps{number}a", f"ps{number}b"
    net = f"10.{200 + number % 50}.{number // 50 % 250}"
    try:
        run("ip", "netns", "add", name)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no network namespace can be made here: {error}")
    try:
        run("ip", "link", "add", ours, "type", "veth", "peer", "name", theirs, "netns", name)
        run("ip", "addr", "add", f"{net}.1/30", "dev", ours)
        run("ip", "link", "set", ours, "up")
        run("ip", "-n", name, "addr", "add", f"{net}.2/30", "dev", theirs)
        run("ip", "-n", name, "link", "set", theirs, "up")
        yield name, f"{net}.1", lambda: run("ip", "-n", name, "link", "set", theirs, "down")
    finally:
        run("ip", "netns", "del", name)


def test_peers_that_vanish_without_a_word_are_given_up(
    tmp_path: Path, cable: tuple[str, str, Callable[[], None]]
) -> None:
    namespace, host, cut = cable
    server = ServerProcess(tmp_path / "data", tmp_path / "log", {"TCP_KEEPALIVE_MS": "4000"})
    server.arguments = (
        *("--kafka", f"0.0.0.0:{server.kafka_port}", "--http", f"0.0.0.0:{server.http_port}"),
        *("--advertised", server.bootstrap, "--allow-insecure"),
    )
    server.start()
    try:
        ports = [str(server.kafka_port), str(server.http_port)]
        assert server.http
        within = ("ip", "netns", "exec", namespace)
        with holding(AWAY, host, *ports, within=within):
            eventually(lambda: connections(server), lambda count: count >= 40)
            cut()
            eventually(lambda: connections(server), lambda count: count == 0)
            # It was the kernel: no time of ours was over.
            found = scrape(server.http)
            assert found["penstock_connections", ""] == 0
            assert sum(count for (name, _), count in found.items() if name == ENDED) == 0
    finally:
        server.kill()


def connections(server: ServerProcess) -> int:
    """How many connections from elsewhere the server has, as the kernel knows."""
    assert server.process is not None
    table = Path(f"/proc/{server.process.pid}/net/tcp").read_text().splitlines()[1:]
    found = 0
    for row in table:
        _, local, remote, state = row.split()[:4]
        is_ours = int(local.split(":")[1], 16) in {server.kafka_port, server.http_port}
        found += is_ours and state == "01" and not remote.startswith("0100007F")
    return found
