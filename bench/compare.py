"""How does Penstock compare with Apache Kafka on this machine, now?

    make bench                                       everything, three rounds, about an hour
    make bench WORKLOADS=produce-1k,fan ROUNDS=5     some of it
    make bench SERVERS=penstock WORKLOADS=fan        ours alone, to try a change
    python bench/compare.py --table RESULTS.json     the table again from a results file

Both servers run the same workloads in turn, each on fresh data, only one alive at a time; in every
round the other one begins. The client program (`penstock bench`, and the small ones of this
folder) shares the machine with the server, so nothing else may run meanwhile: "noise" is the share
of all CPUs that others used, and a figure with much of it is not to be trusted.

A produce's CPU is counted until the WAL is drained into segments, from before the client starts:
what Penstock defers is charged to the produce that caused it. Kafka's is that of the window in
which records were sent. To compare two commits, run it in a checkout of each and put the two tables
side by side; the figures of Kafka in both say whether the machine was the same.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka.admin import AdminClient

from cases import Case, chosen
from fsync_floor import measure as measure_floor
from servers import BENCH, ROOT, Contender, Running, contenders, evict, install_kafka
from start import measure as measure_start
from targets import medians, number, table
from transactions import CASES as TRANSACTIONS

CASE_SECONDS_MAX = 600
FILL_RECORDS = 400_000
WARM_RECORDS = 60_000
QUIET_PERCENT = 8.0
QUIET_SECONDS_MAX = 30.0

Row = dict[str, Any]


def run_program(command: list[str]) -> Row:
    """Run a measuring program; its last JSON line."""
    done = subprocess.run(
        [sys.executable, *command],
        stdout=subprocess.PIPE,
        text=True,
        timeout=CASE_SECONDS_MAX,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        return {"ok": False, "failed": f"exit {done.returncode}"}
    answer: Row = json.loads(lines[-1])
    return answer


def load(server: Running, *arguments: str) -> Row:
    """Run `penstock bench` with arguments against a server; its report."""
    command = [str(Path(sys.executable).parent / "penstock"), "bench", *arguments, "--json"]
    where = ("--server", server.bootstrap, "--server-pid", str(server.pid))
    done = subprocess.run(
        [*command, *where],
        stdout=subprocess.PIPE,
        text=True,
        timeout=CASE_SECONDS_MAX,
        check=False,
    )
    if not done.stdout.startswith("{"):
        return {"ok": False, "failed": f"exit {done.returncode}"}
    answer: Row = json.loads(done.stdout)
    return answer


def wait_quiet() -> None:
    """Wait, for half a minute at most, until the machine is idle for a second."""
    end = time.monotonic() + QUIET_SECONDS_MAX
    while psutil.cpu_percent(interval=1.0) > QUIET_PERCENT and time.monotonic() < end:
        pass


def drop_topics(server: Running) -> None:
    """Delete what a case kept, so that the next one starts alike."""
    admin = AdminClient({"bootstrap.servers": server.bootstrap, "log_level": 2})
    topics = [name for name in admin.list_topics(timeout=30).topics if not name.startswith("__")]
    if topics:
        for future in admin.delete_topics(topics, request_timeout=60).values():
            with contextlib.suppress(Exception):
                future.result(60)
    server.drain()


def measured(server: Running, *arguments: str) -> Row:
    """Run a workload, wait for the drain, and give the figures that targets name."""
    before = server.cpu_s()
    row = load(server, *arguments, "--keep")
    drain_s = server.drain()
    total = server.cpu_s() - before
    usage = row.get("usage") or {}
    # What runs after the last answer belongs to the workload; Kafka has nothing of the kind that
    # could be waited for, so its window counts.
    cpu = total if server.contender.drains else usage.get("server_cpu_s") or 0.0
    row.update(charged_cpu_s=round(cpu, 3), drain_s=round(drain_s, 2))
    row["noise"] = usage.get("noise_percent")
    row["rss_peak_mb"] = usage.get("server_rss_peak_mb")
    row["client_cpu_s"] = usage.get("client_cpu_s")
    if cpu:
        row["rec_cpu_s"] = round(row.get("record_count", 0) / cpu)
        if "mb_s" in row:
            row["mb_cpu_s"] = round(row["mb_s"] * row["seconds"] / cpu, 1)
    for name, spread in (("ack", "acknowledged"), ("e2e", "received")):
        for percentile in ("p50", "p99"):
            value = (row.get(spread) or {}).get(f"{percentile}_ms")
            if value is not None:
                row[f"{name}_{percentile}_ms"] = value
    return row


def run_case(case: Case, server: Running, topic: str) -> Row:
    """One case on a server that is up and warm."""
    extra = case.kafka_arguments if server.contender.name == "kafka" else ()
    if case.program == "load":
        return measured(server, *case.arguments, *extra)
    if case.program in ("consume", "consume-cold"):
        load(server, "produce", "--topic", topic, "--records", str(FILL_RECORDS))
        server.drain()
        arguments = ("consume", "--topic", topic)
        if case.program == "consume-cold":
            server.stop()
            server.start()
            evict(server.data)
        else:
            # Twice: the first reading warms the caches.
            load(server, *arguments)
        return measured(server, *arguments)
    if case.program == "fanout":
        return run_program([str(BENCH / "fanout.py"), "--bootstrap", server.bootstrap])
    if case.program == "transactions":
        return run_program([str(BENCH / "transactions.py"), "--bootstrap", server.bootstrap])
    assert case.program == "partitions"
    return run_partitions(server)


def run_partitions(server: Running) -> Row:
    """Produce to twelve partitions without and with 5,000 others, and to those."""
    workload = ("produce", "--records", "200000")
    without = measured(server, *workload)
    command = [str(BENCH / "partitions.py"), "--bootstrap", server.bootstrap]
    row = run_program([*command, "--server-pid", str(server.pid)])
    with_them = measured(server, *workload)
    to_all = measured(server, *workload, "--partitions", "5000")
    row.update(
        mb_cpu_s_without=without.get("mb_cpu_s"),
        mb_cpu_s_with=with_them.get("mb_cpu_s"),
        mb_cpu_s_to_all=to_all.get("mb_cpu_s"),
        ok=all(r.get("ok") for r in (row, without, with_them, to_all)),
    )
    return row


def chosen_names(cases: list[Case]) -> list[str]:
    """The servers that run any of the cases, or those of them that SERVERS names."""
    only = os.environ.get("SERVERS")
    return [
        name
        for name in contenders()
        if any(name in case.contenders for case in cases) and (not only or name in only.split(","))
    ]


def run_round(number_of_round: int, cases: list[Case], folder: Path, keep: Any) -> None:
    """All cases of one round; the server that begins changes from round to round."""
    keep({"contender": "floor", "case": "fsync", "ok": True, **measure_floor(folder)})
    known = contenders()
    names = chosen_names(cases)
    if number_of_round % 2:
        names.reverse()
    for name in names:
        run_contender(known[name], cases, folder / f"{name}-{number_of_round}", keep)


def run_contender(contender: Contender, cases: list[Case], data: Path, keep: Any) -> None:
    """All cases of one server in one round."""
    mine = [case for case in cases if contender.name in case.contenders]
    starts = [case for case in mine if case.program == "start"]
    for case in starts:
        wait_quiet()
        keep({**measure_start(contender, data), "case": case.name})
        shutil.rmtree(data, ignore_errors=True)
    others = [case for case in mine if case.program != "start"]
    if not others:
        return
    with Running(contender, data) as server:
        load(server, "consume", "--records", str(WARM_RECORDS))
        load(server, "latency", "--seconds", "3", "--warmup", "1")
        for index, case in enumerate(others):
            drop_topics(server)
            wait_quiet()
            row = run_case(case, server, f"{case.name}-{index}")
            keep({**row, "contender": contender.name, "case": case.name})
        keep(
            {
                "contender": contender.name,
                "case": "end",
                "rss_mb": round(server.rss_mb(), 1),
                "ok": True,
            }
        )


def machine() -> Row:
    """What the figures were measured on."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return {
        "commit": commit.stdout.strip(),
        "at": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "cpus": os.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
    }


def report(results: Row) -> str:
    """The table of targets, and one line per case and server with what else is worth knowing."""
    rows: list[Row] = results["rows"]
    about = results["machine"]
    rounds = max((row["round"] for row in rows), default=0) + 1
    head = (
        f"Commit {about['commit']}, {about['at']}, {about['cpus']} CPUs, "
        f"Python {about['python']}, {rounds} rounds, medians."
    )
    lines = [
        head,
        "",
        table(list(rows)),
        "",
        "| server | case | runs ok | figures | noise % |",
        "| --- | --- | --- | --- | --- |",
    ]
    found = medians(rows)
    shown = (
        *("mb_s", "mb_cpu_s", "records_s", "rec_cpu_s", "ack_p50_ms", "ack_p99_ms", "e2e_p50_ms"),
        *("e2e_p99_ms", "p50_ms", "p99_ms", "ready_s", "rss_mb", "rss_peak_mb", "drain_s"),
        *("charged_cpu_s", "client_cpu_s"),
        *("idle_cpu_percent", "metadata_p50_ms", "create_s", "mb_cpu_s_to_all"),
        *(
            f"{name}_{what}"
            for name, *_ in TRANSACTIONS
            for what in ("commits_s", "p50_ms", "p99_ms")
        ),
        *("read_committed_records_s", "read_uncommitted_records_s"),
    )
    for contender, case in dict.fromkeys((row["contender"], row["case"]) for row in rows):
        these = [row for row in rows if (row["contender"], row["case"]) == (contender, case)]
        figures = [
            f"{key} {number(found[f'{contender}.{case}.{key}'])}"
            for key in shown
            if f"{contender}.{case}.{key}" in found
        ]
        good = sum(bool(row.get("ok")) for row in these)
        noise = max((row.get("noise") or 0 for row in these), default=0)
        lines.append(
            f"| {contender} | {case} | {good}/{len(these)} | {', '.join(figures)} | {noise} |"
        )
    failed = [row for row in rows if not row.get("ok")]
    lines += [
        f"FAILED: {r['contender']} {r['case']}: {r.get('failed') or r.get('first_failure')}"
        for r in failed
    ]
    return "\n".join(lines)


def main() -> int:
    """Run what is asked, write the results, print the report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=int(os.environ.get("ROUNDS") or 3))
    parser.add_argument("--workloads", default=os.environ.get("WORKLOADS", ""))
    parser.add_argument("--out", type=Path, help="results file (bench/results/<time>.json)")
    parser.add_argument("--table", type=Path, help="print the report of a results file and end")
    options = parser.parse_args()
    if options.table:
        print(report(json.loads(options.table.read_text())))
        return 0
    cases = chosen(options.workloads)
    if "kafka" in chosen_names(cases):
        install_kafka()
    results_folder = BENCH / "results"
    results_folder.mkdir(exist_ok=True)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    out = options.out or results_folder / f"{stamp}.json"
    # On the disk of the checkout, not in a temporary directory that may be memory.
    data = results_folder / f"data-{stamp}"
    data.mkdir()
    results: Row = {"machine": machine(), "rows": []}
    try:
        for number_of_round in range(options.rounds):

            def keep(row: Row, number_of_round: int = number_of_round) -> None:
                row["round"] = number_of_round
                results["rows"].append(row)
                # Written after each case: an interrupted run keeps what it has.
                out.write_text(json.dumps(results, indent=1))
                state = "ok" if row.get("ok") else f"FAILED {row.get('failed', '')}"
                where = f"round {number_of_round} {row['contender']} {row['case']}"
                print(f"{where}: {state}", file=sys.stderr, flush=True)

            run_round(number_of_round, cases, data, keep)
    finally:
        shutil.rmtree(data, ignore_errors=True)
    print(report(results))
    print(f"\nresults: {out.relative_to(Path.cwd()) if out.is_relative_to(Path.cwd()) else out}")
    return 0 if all(row.get("ok") for row in results["rows"]) else 1


if __name__ == "__main__":
    sys.exit(main())
