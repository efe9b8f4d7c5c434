"""How soon does a record reach 500 consumers that wait for it?

    python bench/fanout.py --bootstrap HOST:PORT [--consumers 500] [--rounds 100]  -> one JSON line

A raw-socket client in a process of its own: each consumer is one connection with one long-poll
Fetch on one partition; a producer on another connection writes one record; a consumer's latency is
from just before the produce is sent to the moment when its whole answer has been read. The client
reads all sockets in one loop, so its own cost (about 10 us per answer) is in the figures of every
server alike. Compare two commits by running it against a server of each, in turn, three times.
"""

from __future__ import annotations

import argparse
import json
import selectors
import socket
import struct
import time

import wire
from fsync_floor import percentile


class Waiter:
    """One consumer: its socket and the part of an answer that has come."""

    def __init__(self, port: int) -> None:
        self.connection = socket.create_connection(("127.0.0.1", port))
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connection.setblocking(False)
        self.got = bytearray()

    def read(self) -> bytes | None:
        """The whole answer once it is there."""
        chunk = self.connection.recv(1 << 16)
        if not chunk:
            raise ConnectionError("the server closed a consumer's connection")
        self.got += chunk
        if len(self.got) < 4 or len(self.got) < 4 + struct.unpack_from(">i", self.got)[0]:
            return None
        answer, self.got = bytes(self.got), bytearray()
        return answer


def make_topic(bootstrap: str, topic: str) -> None:
    """A topic of one partition."""
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)


def measure(port: int, topic: str, consumers: int, rounds: int) -> dict[str, object]:
    """Latencies in milliseconds over all consumers and rounds; the first tenth warms up."""
    producer = socket.create_connection(("127.0.0.1", port))
    producer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    selector = selectors.DefaultSelector()
    waiters = [Waiter(port) for _ in range(consumers)]
    for waiter in waiters:
        selector.register(waiter.connection, selectors.EVENT_READ, waiter)
    # A new topic's leader may not answer yet.
    deadline = time.monotonic() + 30
    while True:
        answer = wire.ask(producer, wire.produce(topic, 0, wire.record_batch(b"first")))
        error = struct.unpack_from(">h", answer, 8 + 4 + 2 + len(topic) + 4 + 4)[0]
        if error == 0:
            break
        if time.monotonic() > deadline:
            raise SystemExit(f"produce error {error}")
        time.sleep(0.1)
    offset = struct.unpack_from(">q", answer, 8 + 4 + 2 + len(topic) + 4 + 4 + 2)[0] + 1
    all_ms: list[float] = []
    last_ms: list[float] = []
    ack_ms: list[float] = []
    skipped = rounds // 10
    for number in range(rounds):
        message = wire.fetch(topic, 0, offset)
        for waiter in waiters:
            waiter.connection.sendall(message)
        # Until all fetches wait inside the server: nothing tells a client that, so time must.
        time.sleep(0.15)
        selector.register(producer, selectors.EVENT_READ, None)
        waiting = consumers
        acknowledged = False
        started = time.perf_counter()
        producer.sendall(wire.produce(topic, 0, wire.record_batch(b"x" * 100)))
        while waiting or not acknowledged:
            events = selector.select(10)
            if not events:
                raise SystemExit(f"{waiting} consumers got nothing within 10 s")
            for key, _ in events:
                waiter = key.data
                if waiter is None:
                    wire.read_frame(producer)
                    acknowledged = True
                    if number >= skipped:
                        ack_ms.append((time.perf_counter() - started) * 1000)
                    continue
                answer_or_none = waiter.read()
                if answer_or_none is None:
                    continue
                if number >= skipped:
                    all_ms.append((time.perf_counter() - started) * 1000)
                waiting -= 1
                if waiting == 0 and number >= skipped:
                    last_ms.append(all_ms[-1])
                found = wire.fetched_batch(answer_or_none, topic)
                assert found is not None
                assert found[0] == offset, (found, offset)
        selector.unregister(producer)
        offset += 1
    for waiter in waiters:
        waiter.connection.close()
    producer.close()
    all_ms.sort()
    last_ms.sort()
    ack_ms.sort()
    return {
        "consumers": consumers,
        "rounds": rounds - skipped,
        "p50_ms": round(percentile(all_ms, 50), 3),
        "p99_ms": round(percentile(all_ms, 99), 3),
        "last_p50_ms": round(percentile(last_ms, 50), 3),
        "ack_p50_ms": round(percentile(ack_ms, 50), 3),
        "ok": True,
    }


def main() -> None:
    """One JSON line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--consumers", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=100)
    options = parser.parse_args()
    topic = f"fanout-{time.time_ns()}"
    make_topic(options.bootstrap, topic)
    port = int(options.bootstrap.rsplit(":", 1)[1])
    print(json.dumps(measure(port, topic, options.consumers, options.rounds)))


if __name__ == "__main__":
    main()
