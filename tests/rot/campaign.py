"""Rot, at random: what is stored is flipped, cut, swapped, replaced and deleted, and all is read.

    python tests/rot/campaign.py [--count 10000] [--seed N] [--processes 2]

Each case copies a small data directory that holds segments, raw objects, a WAL, a database, its
journal and snapshots, damages one thing, starts a log on the copy and reads every offset. Records
must be those that were acknowledged; what can't be served must be an error that names its place;
nothing may hang. A start that is refused must name a file, and damage of WAL files, whose entries
the journal has, refuses none. A failure prints its seed.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from random import Random

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from penstock.log.findings import DamagedError  # noqa: E402
from penstock.log.retention.keeper import partition_keys  # noqa: E402
from penstock.model.errors import PenstockError  # noqa: E402
from penstock.model.ids import PartitionKey  # noqa: E402
from penstock.records.batch import stored_header  # noqa: E402
from penstock.records.decode import decode_batch  # noqa: E402
from support.log_rig import Rig, run_rig  # noqa: E402

STILL = 1 << 40
CASE_S = 60.0
"""Only a case that hangs takes so long."""

Log = dict[tuple[str, int], list[tuple[int, bytes]]]


class RotError(AssertionError):
    """A wrong record, a silent gap, or an error without a name."""


def make_base(path: Path) -> Log:
    """A stopped log with some of everything; what is in it, by topic and partition."""
    held: Log = {}

    async def fill(rig: Rig) -> None:
        for name, configs in (("plain", {}), ("packed", {}), ("raw", OBJECT)):
            keys = await rig.topic(name, 2, **configs)
            for number, key in enumerate(keys):
                held[name, number] = []
                for batch in range(8):
                    values = [b"%s %d %d %d" % (name.encode(), number, batch, n) for n in range(3)]
                    codec = "lz4" if name == "packed" else "none"
                    await rig.append(key, *values, codec=codec, producer=(7, 0, 3 * batch))
            if name == "plain":
                await rig.drain()
                await rig.upkeep.snapshot()
            elif name == "packed":
                await rig.drain()
        for topic in rig.view.topics():
            for number, key in enumerate(partition_keys(topic)):
                await rig.append(key, b"late %d" % number, producer=(7, 0, 24))
                held[topic.name, number] = await rig.read_all(key)

    run_rig(path, fill, segment_age_ms=STILL)
    assert sum(map(len, held.values())) == 6 * 25
    return held


OBJECT = {"penstock_durability": "object"}


def damage(data: Path, random: Random) -> tuple[str, bool]:
    """Damage one thing; what was done, for people, and whether a start may be refused for it."""
    files = sorted(
        path
        for path in data.rglob("*")
        if path.is_file() and path.stat().st_size and path.suffix != ".lock"
    )
    groups: dict[str, list[Path]] = {}
    for path in files:
        groups.setdefault(path.relative_to(data).parts[0], []).append(path)
    # Objects as often as all else together: there is most of them.
    group = random.choice([*groups, "objects", "objects"])
    path = random.choice(groups[group])
    name = path.relative_to(data)
    other = random.choice(groups[group])
    may_refuse = not (group == "wal" and path.suffix == other.suffix == ".wal")
    match random.choice(["flip", "flip", "flip", "cut", "swap", "older", "delete"]):
        case "flip":
            body = bytearray(path.read_bytes())
            # Most of a preallocated file was never written.
            used = len(body.rstrip(b"\0")) or 1
            at = random.randrange(used)
            body[at] ^= 1 << random.randrange(8)
            path.write_bytes(body)
            return f"flipped a bit of byte {at} of {name}", may_refuse
        case "cut":
            size = random.randrange(path.stat().st_size)
            with path.open("r+b") as file:
                file.truncate(size)
            return f"cut {name} to {size} bytes", may_refuse
        case "swap":
            first, second = path.read_bytes(), other.read_bytes()
            path.write_bytes(second)
            other.write_bytes(first)
            return f"swapped {name} and {other.relative_to(data)}", may_refuse
        case "older":
            path.write_bytes(other.read_bytes())
            return f"put {other.relative_to(data)} in place of {name}", may_refuse
        case _:
            path.unlink()
            return f"deleted {name}", may_refuse


def run_case(base: Path, held: Log, seed: int) -> str:
    """One case; its outcome: clean, damaged or refused.

    Raises:
        RotError: what must not be.
    """
    random = Random(seed)
    outcome = "clean"
    with tempfile.TemporaryDirectory(prefix="penstock-rot-") as folder:
        data = Path(folder) / "data"
        shutil.copytree(base, data)
        done, may_refuse = damage(data, random)

        async def read(rig: Rig) -> None:
            nonlocal outcome
            rig.forget_memory()
            for (name, number), records in held.items():
                topic = rig.view.topic(name)
                if topic is None:
                    raise RotError(f"topic {name} is gone")
                key = partition_keys(topic)[number]
                found, damaged = await read_partition(rig, key, len(records))
                for offset, value in found:
                    if records[offset] != (offset, value):
                        raise RotError(f"{name}-{number} offset {offset}: {value!r}")
                missing = set(range(len(records))) - {offset for offset, _ in found} - damaged
                if missing:
                    raise RotError(f"{name}-{number}: no error for offsets {sorted(missing)}")
                if damaged:
                    outcome = "damaged"
                    if not rig.log.damages.known():
                        raise RotError(f"{name}-{number}: the status names no damage")

        try:
            run_rig(data, read, segment_age_ms=STILL)
        except PenstockError as error:
            if not (error.subject and error.detail):
                raise RotError(f"an error without a name: {error!r}") from error
            if not may_refuse:
                raise RotError(f"seed {seed}, {done}: no start: {error}") from error
            outcome = "refused"
        except RotError as error:
            raise RotError(f"seed {seed}, {done}: {error}") from error
        except BaseException as error:
            raise RotError(f"seed {seed}, {done}: {error!r}") from error
    return outcome


async def read_partition(
    rig: Rig, key: PartitionKey, end: int
) -> tuple[list[tuple[int, bytes]], set[int]]:
    """All records that can be read, and the offsets that are named as damaged."""
    found: list[tuple[int, bytes]] = []
    damaged: set[int] = set()
    offset = rig.log.log_start(key)
    if rig.log.high_watermark(key) != end:
        raise RotError(f"the high watermark is {rig.log.high_watermark(key)}, {end} was told")
    while offset < end:
        try:
            read = await asyncio.wait_for(rig.log.reader.read_loaded(key, offset, 2_000), CASE_S)
        except DamagedError as error:
            if not error.damage.place or not error.damage.start <= offset < error.damage.end:
                raise RotError(f"damage at {offset} is named as {error.damage}") from error
            damaged.update(range(offset, error.damage.end))
            offset = error.damage.end
            continue
        if read is None:
            raise RotError(f"nothing is read at offset {offset}")
        body = b"".join(read.views)
        position = 0
        while position < len(body):
            header = stored_header(body, position)
            batch = memoryview(body)[position : position + header.length]
            found += [
                (header.base_offset + record.offset_delta, record.value or b"")
                for record in decode_batch(batch)
                if header.base_offset + record.offset_delta >= offset
            ]
            position += header.length
        offset = read.end_offset
    return found, damaged


def run_cases(seeds: Sequence[int]) -> tuple[Counter[str], list[str]]:
    """Outcomes, and what failed."""
    outcomes: Counter[str] = Counter()
    failed = []
    with tempfile.TemporaryDirectory(prefix="penstock-rot-") as folder:
        base = Path(folder) / "base"
        held = make_base(base)
        for seed in seeds:
            try:
                outcomes[run_case(base, held, seed)] += 1
            except RotError as error:
                failed.append(str(error))
    return outcomes, failed


def main() -> None:
    """Run the cases and print how they ended."""
    import logging

    logging.disable(logging.CRITICAL)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000_000)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    seeds = range(options.seed, options.seed + options.count)
    parts = [seeds[at :: options.processes * 8] for at in range(options.processes * 8)]
    outcomes: Counter[str] = Counter()
    failed: list[str] = []
    with ProcessPoolExecutor(options.processes) as pool:
        for found, wrong in pool.map(run_cases, parts):
            outcomes += found
            failed += wrong
            for text in wrong:
                print(text, flush=True)
    told = ", ".join(f"{name} {count}" for name, count in sorted(outcomes.items()))
    print(f"{options.count} cases from seed {options.seed}: {told}; {len(failed)} failed")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
