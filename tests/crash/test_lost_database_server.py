"""A server that is killed under load, and whose metadata.sqlite is then deleted, cut or changed,
keeps every promise: records, group offsets, topics, producers' sequences.

    PENSTOCK_CRASH_KILLS=100  how many times it is killed (12)
    PENSTOCK_CRASH_SEED=...   repeats a run's choices (not its interleaving of threads)
"""

from __future__ import annotations

import os
import random
import sqlite3
import sys
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

from support.crash_load import CrashLoad
from support.log_checker import check
from support.server import ServerProcess, run_penstock
from support.waiting import eventually

KILLS = int(os.environ.get("PENSTOCK_CRASH_KILLS", "12"))
SETTINGS = {
    "WAL_BYTES_MAX": "64MiB",
    "WAL_FILE_BYTES": "4MiB",
    "SEGMENT_BYTES": "1MiB",
    "SEGMENT_AGE_MS": "500",
    "SNAPSHOT_INTERVAL_MS": "1s",
}


KINDS = ["deleted", "deleted with its WAL", "cut", "emptied", "header", "page", "cell", "bit"]
CELLS = [
    "UPDATE partitions SET next_offset = next_offset + 7",
    "UPDATE partitions SET log_start = next_offset",
    "UPDATE group_offsets SET committed_offset = committed_offset / 2",
    "UPDATE producers SET epoch = epoch + 1",
    "UPDATE object_runs SET position = position + 64",
    "UPDATE objects SET condemned_ms = 1, condemned_position = 1",
]
"""What SQLite's own checks take for right."""


def say(text: str) -> None:
    """Progress that pytest shows with the failure, or with -s."""
    print(text, file=sys.stderr, flush=True)


def damage(path: Path, chance: random.Random) -> str:
    """Delete, cut or overwrite a database. Returns what was done."""
    wal = path.with_name(path.name + "-wal")
    kind = chance.choice(KINDS)
    if kind in {"cell", "bit"}:
        with closing(sqlite3.connect(path)) as connection, connection:
            if kind == "cell":
                connection.execute(chance.choice(CELLS))
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    if kind.startswith("deleted"):
        path.unlink()
        if kind != "deleted":
            wal.unlink(missing_ok=True)
        return kind
    data = bytearray(path.read_bytes())
    if kind == "cut":
        del data[chance.randrange(len(data)) :]
    elif kind == "emptied":
        data.clear()
    elif kind == "cell":
        return kind
    elif kind == "bit":
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    elif kind == "header":
        data[chance.randrange(16)] ^= 1 << chance.randrange(8)
    else:
        at = 4096 * chance.randrange(len(data) // 4096)
        data[at : at + 4096] = chance.randbytes(4096)
    path.write_bytes(data)
    if kind != "page":
        # Else SQLite may put back from its WAL what was overwritten.
        wal.unlink(missing_ok=True)
    return kind


def test_no_promise_is_broken_by_the_loss_of_the_database(tmp_path: Path) -> None:
    seed = int(os.environ.get("PENSTOCK_CRASH_SEED", "0")) or random.SystemRandom().getrandbits(32)
    say(f"repeat with PENSTOCK_CRASH_SEED={seed} PENSTOCK_CRASH_KILLS={KILLS}")
    chance = random.Random(seed)
    server = ServerProcess(tmp_path / "data", tmp_path / "server.log", SETTINGS)
    server.start()
    load = CrashLoad(server.bootstrap, f"lost-{seed}", seed)
    load.start()
    kinds: Counter[str] = Counter()
    try:
        for turn in range(KILLS):
            before = load.acknowledged()
            eventually(
                load.acknowledged, lambda now, least=before + 50: now > least, timeout_seconds=120
            )
            time.sleep(chance.uniform(0.0, 1.5))
            assert server.running(), f"ended by itself\n{server.tail()}"
            server.kill()
            kind = damage(server.data / "metadata.sqlite", chance)
            kinds[kind] += 1
            seconds = server.start()
            done = load.acknowledged()
            say(f"kill {turn + 1}/{KILLS}: {kind}, {done} acknowledged, up in {seconds:.2f} s")
        load.stop()
        history = load.history()
        fatal = [text for producer in load.producers for text in producer.fatal]
        errors = [text for producer in load.producers for text in producer.errors.values()]
        assert server.stop() == 0, server.tail()
        anomalies = check(history)
        assert not anomalies, "\n".join(str(anomaly) for anomaly in anomalies[:20])
        assert not fatal, fatal
        assert not errors, Counter(errors)
        verified = run_penstock("verify", "--data", str(server.data), timeout_seconds=300)
        assert verified.returncode == 0, verified.stdout + verified.stderr
        # Set aside, never deleted.
        lost = kinds["deleted"] + kinds["deleted with its WAL"]
        asides = list(server.data.glob("metadata.sqlite.damaged-*"))
        say(f"{dict(kinds)}, {len(asides)} files set aside")
        assert asides or lost == KILLS
    finally:
        if server.running():
            server.kill()


def test_a_cell_that_flips_under_a_running_server_ends_it_and_is_made_right(tmp_path: Path) -> None:
    """The check that is due names the table, status 70, and the next start serves what was
    acknowledged."""
    settings = {**SETTINGS, "STATE_CHECK_ENTRIES": "1000"}
    server = ServerProcess(tmp_path / "data", tmp_path / "server.log", settings)
    server.start()
    load = CrashLoad(server.bootstrap, "flipped", 7)
    load.start()
    try:
        eventually(load.acknowledged, lambda now: now > 500, timeout_seconds=120)
        path = server.data / "metadata.sqlite"
        with closing(sqlite3.connect(path, timeout=30)) as connection, connection:
            connection.execute("INSERT INTO clean VALUES (7, 7, 7)")
        eventually(server.running, lambda runs: not runs, timeout_seconds=240)
        assert server.process is not None
        assert server.process.wait() == 70
        assert "its tables clean are not what the journal's entries past" in server.tail(20000)
        server.process = None
        server.start()
        eventually(load.acknowledged, lambda now, least=load.acknowledged() + 50: now > least)
        load.stop()
        assert server.running(), server.tail(20000)
        anomalies = check(load.history())
        assert server.stop() == 0, server.tail()
        assert not anomalies, "\n".join(str(anomaly) for anomaly in anomalies[:20])
        with closing(sqlite3.connect(server.data / "metadata.sqlite")) as connection:
            assert connection.execute("SELECT count(*) FROM clean").fetchone() == (0,)
    finally:
        if server.running():
            server.kill()
