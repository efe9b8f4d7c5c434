"""A server that is killed at random moments under load keeps every promise.

    PENSTOCK_CRASH_KILLS=100  how many times it is killed (12)
    PENSTOCK_CRASH_SEED=...   repeats a run's choices (not its interleaving of threads)
    PENSTOCK_TEST_PEER=...    another broker in its place, see support.peer

A failure prints the seed and keeps the data directory beside the server's log.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections import Counter
from pathlib import Path

from support.crash_load import CrashLoad
from support.log_checker import check
from support.peer import PeerProcess
from support.server import ServerProcess, run_penstock
from support.waiting import eventually

KILLS = int(os.environ.get("PENSTOCK_CRASH_KILLS", "12"))
# Small enough that within a few seconds WAL files are reused and segments are written and joined,
# so that kills land in the middle of that too.
SMALL = {
    "WAL_BYTES_MAX": "64MiB",
    "WAL_FILE_BYTES": "4MiB",
    "SEGMENT_BYTES": "1MiB",
    "SEGMENT_AGE_MS": "500",
    "TAIL_CACHE_BYTES": "4MiB",
    "BLOCK_CACHE_BYTES": "8MiB",
}


def say(text: str) -> None:
    """Progress that pytest shows with the failure, or with -s."""
    print(text, file=sys.stderr, flush=True)


def server_under_test(folder: Path) -> ServerProcess | PeerProcess:
    """Penstock, or the peer that the environment names."""
    peer = os.environ.get("PENSTOCK_TEST_PEER")
    if peer:
        return PeerProcess(folder / "data", peer.split())
    # Started as users start it, where other tests fork.
    return ServerProcess(folder / "data", folder / "server.log", SMALL, python=sys.executable)


def test_no_promise_is_broken_by_kills(tmp_path: Path) -> None:
    """Acknowledged records are there once, in order, at their offsets; committed offsets never go
    back; topics made and deleted stay so; and the stopped directory verifies."""
    seed = int(os.environ.get("PENSTOCK_CRASH_SEED", "0")) or random.SystemRandom().getrandbits(32)
    say(f"repeat with PENSTOCK_CRASH_SEED={seed} PENSTOCK_CRASH_KILLS={KILLS}")
    chance = random.Random(seed)
    server = server_under_test(tmp_path)
    server.start()
    load = CrashLoad(server.bootstrap, f"crash-{seed}", seed)
    load.start()
    try:
        killed_in_recovery = 0
        for turn in range(KILLS):
            before = load.acknowledged()
            # Each life must get somewhere, or the run proves nothing about what it wrote.
            eventually(
                load.acknowledged, lambda now, least=before + 50: now > least, timeout_seconds=120
            )
            time.sleep(chance.uniform(0.05, 4.0))
            assert server.running(), f"ended by itself\n{server.tail()}"
            server.kill()
            if isinstance(server, ServerProcess) and chance.random() < 0.25:
                # Killed again while it recovers: recovery must bear its own crash.
                kill_while_starting(server, chance.uniform(0.05, 0.6))
                killed_in_recovery += 1
            seconds = server.start()
            done = load.acknowledged()
            say(f"kill {turn + 1}/{KILLS}: {done} acknowledged, up in {seconds:.2f} s")
        # The group of readers finds together again once the kills have ended.
        eventually(
            lambda: [reader.commits for reader in load.readers],
            lambda now, before=[reader.commits for reader in load.readers]: sum(now) > sum(before),
            timeout_seconds=120,
        )
        load.stop()
        history = load.history()
        fatal = [text for producer in load.producers for text in producer.fatal]
        errors = [text for producer in load.producers for text in producer.errors.values()]
        final = history.final
        assert server.running(), server.tail()
        assert server.stop() == 0, server.tail()
        anomalies = check(history)
        counts = Counter(anomaly.name for anomaly in anomalies)
        acknowledged = sum(send.offset is not None for send in history.sends)
        say(
            f"{acknowledged} of {len(history.sends)} records acknowledged, "
            f"{sum(map(len, final.values()))} stored, {len(history.group_events)} group events, "
            f"{len(history.topic_events)} topic events, {killed_in_recovery} kills in recovery"
        )
        assert not anomalies, f"{counts}\n" + "\n".join(str(a) for a in anomalies[:20])
        assert not fatal, fatal
        assert not errors, Counter(errors)
        if isinstance(server, ServerProcess):
            verified = run_penstock("verify", "--data", str(server.data), timeout_seconds=300)
            assert verified.returncode == 0, verified.stdout + verified.stderr
        # What was read before the clean stop is read after it.
        server.start()
        assert load.read_all()[0] == final
        assert server.stop() == 0
    finally:
        if server.running():
            server.kill()


def kill_while_starting(server: ServerProcess, after_seconds: float) -> None:
    """Start it and kill it before it may have become ready."""
    from threading import Timer

    def kill() -> None:
        if server.process is not None:
            server.process.kill()

    timer = Timer(after_seconds, kill)
    timer.start()
    try:
        server.start()
    except Exception:
        # It ended before it was ready, as it should here.
        timer.join()
        return
    timer.join()
    if server.process is not None:
        # Also where it has begun so late that the timer found no process.
        server.process.kill()
        server.process.wait()
        server.process = None
