"""Clients that ask a real server process for large answers and read none of them: a hundred members
keep their places in their groups, memory stays within the limit, and it is said who waits."""

from __future__ import annotations

import contextlib
import json
import resource
import socket
import struct
import threading
import time
import urllib.request
from pathlib import Path

from penstock.kafka.net.lanes import Lane
from penstock.kafka.net.movement import Ending
from support.loopback import request
from support.metrics import scrape
from support.probe import create_topic
from support.resident import resident_kib
from support.server import ServerProcess, running_server
from support.strangers import PATIENCE_S
from support.waiting import eventually

OFFSET_COMMIT, OFFSET_FETCH, JOIN_GROUP, HEARTBEAT, SYNC_GROUP = 8, 9, 11, 12, 14
TOPIC, GROUP = "t", "many"
PARTITIONS = 5_000
METADATA = "m" * 2_000
ANSWER_BYTES = PARTITIONS * len(METADATA)
"""10 MB of each answer."""
LIMIT = 16 << 20
SLACK_KIB = 64 << 10
"""One answer in the making, and what the allocator keeps of those before it."""
STRANGERS = 12
MEMBERS = 100
SESSION_S = 10.0


def text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


class Client:
    """One connection that waits for its answers."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), PATIENCE_S)

    def close(self) -> None:
        self._socket.close()

    def send(self, key: int, version: int, body: bytes) -> None:
        self._socket.sendall(request(key, version, 1, body))

    def receive(self) -> bytes:
        (size,) = struct.unpack(">i", self._read(4))
        return self._read(size)[4:]

    def _read(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            some = self._socket.recv(count - len(data))
            assert some, "the server closed the connection"
            data += some
        return bytes(data)


def join_of(session_s: float, metadata: bytes) -> bytes:
    """What follows the group in a new member's JoinGroup 0."""
    body = struct.pack(">i", int(session_s * 1000)) + text("") + text("consumer")
    protocol = text("range") + struct.pack(">i", len(metadata)) + metadata
    return body + struct.pack(">i", 1) + protocol


class Member:
    """The only member of a group."""

    def __init__(self, port: int, number: int) -> None:
        self._client = Client(port)
        self._group = text(f"g{number}")

    def close(self) -> None:
        self._client.close()

    def ask_to_join(self, metadata: bytes = b"meta") -> None:
        self._client.send(JOIN_GROUP, 0, self._group + join_of(SESSION_S, metadata))

    def sync(self) -> None:
        joined = self._client.receive()
        error, self._generation = struct.unpack_from(">hi", joined)
        assert error == 0
        at = 6
        for _ in range(3):  # protocol, leader, then this member's id
            (length,) = struct.unpack_from(">h", joined, at)
            member = joined[at + 2 : at + 2 + length].decode()
            at += 2 + length
        self._self = self._group + struct.pack(">i", self._generation) + text(member)
        assignment = text(member) + struct.pack(">i", 3) + b"all"
        self._client.send(SYNC_GROUP, 0, self._self + struct.pack(">i", 1) + assignment)
        assert self._client.receive()[:2] == b"\0\0"

    def beat(self) -> None:
        self._client.send(HEARTBEAT, 0, self._self)

    def beaten(self) -> int:
        """The error of the heartbeat's answer."""
        return int.from_bytes(self._client.receive()[:2], "big")


def commit_much(port: int) -> None:
    """Offsets of one group whose metadata is long."""
    client = Client(port)
    for start in range(0, PARTITIONS, 1000):
        body = text(GROUP) + struct.pack(">i", -1) + text("") + struct.pack(">q", -1)
        body += struct.pack(">i", 1) + text(TOPIC) + struct.pack(">i", 1000)
        body += b"".join(
            struct.pack(">iq", number, 1) + text(METADATA) for number in range(start, start + 1000)
        )
        client.send(OFFSET_COMMIT, 2, body)
        assert client.receive().endswith(struct.pack(">ih", start + 999, 0))
    client.close()


class NonReaders:
    """Connections that ask for the large answer and read none of it; again, once they are ended."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> NonReaders:  # noqa: PYI034 - no subclasses
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        ask = request(OFFSET_FETCH, 2, 1, text(GROUP) + struct.pack(">i", -1))
        with contextlib.ExitStack() as stack:
            peers: list[socket.socket] = []
            while not self._stop.wait(0.05):
                peers = [peer for peer in peers if not is_closed(peer)]
                while len(peers) < STRANGERS:
                    peer = stack.enter_context(socket.socket())
                    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                    peer.connect(("127.0.0.1", self._port))
                    peer.sendall(ask)
                    peers.append(peer)


def is_closed(peer: socket.socket) -> bool:
    """Whether the other side has closed; what it sent stays unread."""
    peer.setblocking(False)
    try:
        peer.send(b"")
        error = peer.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        state = peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
    except OSError:
        return True
    established = 1
    return bool(error) or state != established


def test_members_keep_their_places_while_large_answers_lie_unread(tmp_path: Path) -> None:
    settings = {"INFLIGHT_BYTES_MAX": str(LIMIT)}
    with running_server(tmp_path, settings) as server, contextlib.ExitStack() as stack:
        create_topic(server.bootstrap, TOPIC, PARTITIONS)
        commit_much(server.kafka_port)
        reader = Client(server.kafka_port)
        reader.send(OFFSET_FETCH, 2, text(GROUP) + struct.pack(">i", -1))
        assert len(reader.receive()) > ANSWER_BYTES
        members = [Member(server.kafka_port, number) for number in range(MEMBERS)]
        for member in members:
            stack.callback(member.close)
            member.ask_to_join()
        for member in members:
            member.sync()
        before, most = resident_kib(server), 0
        stack.enter_context(NonReaders(server.kafka_port))
        waiting, errors = 0.0, set()
        until_s = time.monotonic() + 1.5 * SESSION_S
        while time.monotonic() < until_s:
            for member in members:
                member.beat()
            errors |= {member.beaten() for member in members}
            most = max(most, resident_kib(server))
            seen = scrape(server.http)
            waiting = max(waiting, seen["penstock_inflight_waiting", ""])
        assert errors == {0}
        assert waiting >= STRANGERS // 2
        assert seen["penstock_inflight_waits_total", Lane.ANSWER.value] >= STRANGERS // 2
        assert most - before < (LIMIT >> 10) + SLACK_KIB
        with urllib.request.urlopen(f"http://{server.http}/v1/status", timeout=PATIENCE_S) as got:
            shown = json.load(got)["inflight"]
        assert shown["data"]["bytes_max"] == LIMIT
        assert set(shown["groups"]["waiting"].values()) == {0}
        print(f"resident: {before} KiB before, {most} KiB at most; {waiting:.0f} waited")
        # One that reads gets its answer all the same.
        reader.send(OFFSET_FETCH, 2, text(GROUP) + struct.pack(">i", -1))
        assert len(reader.receive()) > ANSWER_BYTES
        reader.close()


CROWD = 1_000
CROWD_METADATA = b"m" * 20_000
CROWD_BYTES = CROWD * len(CROWD_METADATA)
GROUP_LIMIT = 1 << 20


def group_bytes(server: ServerProcess) -> int:
    """What counts in the reserve of group calls."""
    with urllib.request.urlopen(f"http://{server.http}/v1/status", timeout=PATIENCE_S) as got:
        counted: int = json.load(got)["inflight"]["groups"]["bytes"]
    return counted


def join_crowd(port: int, stack: contextlib.ExitStack) -> list[socket.socket]:
    """Members of one group that read nothing yet; the first of them will lead."""
    ask = request(JOIN_GROUP, 0, 1, text("crowd") + join_of(6 * SESSION_S, CROWD_METADATA))
    peers = []
    for _ in range(CROWD):
        peer = stack.enter_context(socket.socket())
        peer.settimeout(PATIENCE_S)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.connect(("127.0.0.1", port))
        peer.sendall(ask)
        peers.append(peer)
    return peers


def test_a_leader_that_does_not_read_its_members_holds_up_no_other_group(tmp_path: Path) -> None:
    settings = {"GROUP_INFLIGHT_BYTES_MAX": str(GROUP_LIMIT)}
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with running_server(tmp_path, settings) as server, contextlib.ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        members = [Member(server.kafka_port, number) for number in range(MEMBERS)]
        for member in members:
            stack.callback(member.close)
            member.ask_to_join()
        for member in members:
            member.sync()
        before = resident_kib(server)
        _, follower, *_ = join_crowd(server.kafka_port, stack)
        # The round has ended: every follower has its answer, and the leader's is on its way.
        assert follower.recv(4)
        reserved = eventually(lambda: group_bytes(server), lambda found: found > CROWD_BYTES)
        print(f"resident: {before} KiB before, {resident_kib(server)} KiB with {reserved} bytes")
        for member in members:
            member.beat()
        assert {member.beaten() for member in members} == {0}
        # What needs room itself, a request of 100 KB and its answer, gets it once the leader that
        # takes nothing has been ended.
        late = Member(server.kafka_port, MEMBERS)
        stack.callback(late.close)
        late.ask_to_join(b"m" * 100_000)
        late.sync()
        ended = scrape(server.http)["penstock_ended_connections_total", Ending.SLOW_REPLY.value]
        assert ended == 1
