"""Run lint and every suite of tests, and print what each took against its budget.

A suite is a folder of tests; one that does not exist is left out. A budget is twice what a quiet
machine of two cores took; a suite above it is marked and fails nothing, since a busy machine is no
defect.
Order, Hypothesis' examples and the simulation's seeds follow from the tree of the last commit: the
same tree has the same ones wherever it is tested, so that what failed is met again, and each commit
has new ones. Seeds of `make unit` and `make sim` are new in each run.
What failed is named again below the table, since the output above it is long.
The last line is read by CI: "N passed, N failed".
"""

import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
FAILURES_SHOWN = 20


def tree_seed() -> str:
    """A number that follows from the tree of the last commit; 0, where there is no repository."""
    command = ("git", "rev-parse", "HEAD^{tree}")
    try:
        asked = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    except OSError:
        return "0"
    return str(int(asked.stdout.strip()[:8] or "0", 16)) if asked.returncode == 0 else "0"


SEED = tree_seed()


@dataclass(frozen=True)
class Stage:
    """A command and the seconds that it should take."""

    name: str
    command: tuple[str, ...]
    budget_s: int
    is_suite: bool = False
    is_counted: bool = False
    """Its last line says how many passed and failed."""


def suite(folder: str, budget_s: int, *options: str) -> Stage:
    """A folder of tests."""
    command = (sys.executable, "-m", "pytest", f"--hypothesis-seed={SEED}", *options, folder)
    return Stage(folder, command, budget_s, is_suite=True, is_counted=True)


def program(name: str, budget_s: int, *command: str) -> Stage:
    """A program that counts what passed and failed."""
    return Stage(name, (sys.executable, *command), budget_s, is_counted=True)


IN_TWO = ("-n", "2", "--dist", "loadfile", "--no-loadscope-reorder")
"""Two processes, each with whole files; for suites that wait more than they work, or that fill one
core alone."""
IN_THREE = ("-n", "3", *IN_TWO[2:])
"""For one that waits for a third of its time or more."""

STAGES = (
    Stage("ruff check", (str(BIN / "ruff"), "check", "."), 5),
    Stage("ruff format", (str(BIN / "ruff"), "format", "--check", "."), 5),
    Stage("mypy --strict", (str(BIN / "mypy"),), 25),
    Stage("import-linter", (str(BIN / "lint-imports"),), 5),
    suite("tests/unit", 300, *IN_THREE),
    suite("tests/packaging", 30),
    suite("tests/clients", 280, *IN_TWO),
    suite("tests/demo", 80),
    suite("tests/crash", 320, *IN_THREE),
    suite("tests/sim", 100),
    program("seeds", 200, "tests/sim/run.py", f"--base={SEED}", "--count=300", "--budget=200"),
    program("planted bugs", 280, "tests/sim/planted.py"),
    suite("tests/cluster", 500, *IN_THREE),
    suite("tests/spark", 390, *IN_TWO),
    suite("tests/chaos", 200),
)
SUMMARY = re.compile(r"^=* ?\d+ (passed|failed|error|skipped)\b.*")
NAMES_FAILURE = re.compile(r"^(FAILED|ERROR) \S+|^SEED \d+: (?!ok)|^ +again: |^.* NOT FOUND\b")
"""Lines of pytest's summary, of a seed that broke a promise and of a missed planted bug."""
COUNTS = re.compile(r"(\d+) (passed|failed|error|errors|skipped)\b")


@dataclass
class Outcome:
    """What a stage came to."""

    stage: Stage
    seconds: float
    ok: bool
    counts: dict[str, int]
    failures: list[str]


def run(stage: Stage) -> Outcome:
    """Run a stage, passing its output on while it comes."""
    print(f"\n== {stage.name}", flush=True)
    started = time.monotonic()
    counts: dict[str, int] = {}
    failures: list[str] = []
    with subprocess.Popen(
        stage.command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        last = ""
        for line in process.stdout:
            sys.stdout.write(line)
            sys.stdout.flush()
            # Clients' libraries may write behind it, from threads of their own.
            last = line if SUMMARY.search(line) else last
            if NAMES_FAILURE.search(line):
                failures.append(line.rstrip())
    if stage.is_counted:
        for number, word in COUNTS.findall(last):
            word = "failed" if word.startswith("error") else word
            counts[word] = counts.get(word, 0) + int(number)
    # 5: a folder without tests yet, which is not a failure of what is there.
    ok = process.returncode == 0 or (stage.is_suite and process.returncode == 5)
    return Outcome(stage, time.monotonic() - started, ok, counts, failures)


def main() -> int:
    """Returns: the exit status."""
    os.environ.setdefault("PYTEST_ORDER_SEED", SEED)
    outcomes = []
    for stage in STAGES:
        if stage.is_suite and not any((REPOSITORY / stage.command[-1]).rglob("test_*.py")):
            continue
        outcomes.append(run(stage))
    print(f"\n{'suite':<20} {'seconds':>8} {'budget':>7}  result")
    passed = failed = skipped = 0
    for outcome in outcomes:
        over = " over budget" if outcome.seconds > outcome.stage.budget_s else ""
        result = "ok" if outcome.ok else "FAILED"
        if outcome.stage.is_counted:
            counts = ", ".join(f"{count} {word}" for word, count in outcome.counts.items())
            result = f"{result}: {counts}"
            passed += outcome.counts.get("passed", 0)
            skipped += outcome.counts.get("skipped", 0)
            failures = outcome.counts.get("failed", 0)
            failed += failures or (not outcome.ok)
        else:
            passed += outcome.ok
            failed += not outcome.ok
        print(
            f"{outcome.stage.name:<20} {outcome.seconds:8.1f} {outcome.stage.budget_s:7d}"
            f"  {result}{over}"
        )
    for outcome in outcomes:
        if not outcome.ok:
            print(f"\n{outcome.stage.name}:")
            print("\n".join(outcome.failures[:FAILURES_SHOWN]) or "  see its output above")
    print(f"\n{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
