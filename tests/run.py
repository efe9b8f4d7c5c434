"""Run lint and every suite of tests, and print what each took against its budget.

A suite is a folder of tests; one that does not exist is left out. A budget is twice what a quiet
machine of two cores took; a suite above it is marked and fails nothing, since a busy machine is no
defect.
What simulates computes all the time, in time of its own; suites of real processes wait half the
time. So two of those suites run at a time, and the simulations beside all others at the lowest
priority, which takes no core from a process under test. What each of these prints is kept, and
printed when it ends.
Order, Hypothesis' examples and the simulation's seeds follow from the tree of the last commit: the
same tree has the same ones wherever it is tested, so that what failed is met again, and each commit
has new ones. So does the third of the planted bugs that is looked for; `make planted` looks for all
of them. Seeds of `make unit` and `make sim` are new in each run.
The time of the processor is that of a suite's whole tree of processes (tree_time.py): with both
cores full, all of it takes half of the sum.
What failed is named again below the table, since the output above it is long.
The last line is read by CI: "N passed, N failed".
"""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
TREE_TIME = Path(__file__).with_name("tree_time.py")
FAILURES_SHOWN = 20
LANES = 2
"""How many suites that wait run at a time."""


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
    is_beside: bool = False
    """It runs all the while, at the lowest priority."""
    waits: bool = False
    """It leaves the processor half idle, and runs together with others that wait."""


def waiting(stage: Stage) -> Stage:
    """A stage that leaves room for others."""
    return replace(stage, waits=True)


def beside(stage: Stage) -> Stage:
    """A stage that gets what time of the processor the others leave."""
    return replace(stage, is_beside=True, command=("nice", "-n", "19", *stage.command))


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
    suite("tests/unit", 800, *IN_THREE),
    # In this order: the last ones may still run when nothing else does.
    beside(suite("tests/sim", 800)),
    beside(program("planted bugs", 1_400, "tests/sim/planted.py", f"--by={SEED}", "--one-in=3")),
    beside(program("seeds", 600, "tests/sim/run.py", f"--base={SEED}", "--count=75")),
    # Long ones first: the last one to begin has nothing to run together with.
    waiting(suite("tests/cluster", 900, *IN_THREE)),
    waiting(suite("tests/spark", 1_400, *IN_TWO)),
    waiting(suite("tests/crash", 600, *IN_THREE)),
    waiting(suite("tests/clients", 500, *IN_TWO)),
    waiting(suite("tests/chaos", 250)),
    waiting(suite("tests/demo", 160)),
    waiting(suite("tests/packaging", 60)),
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
    cpu_s: float
    """Of the processor, of all of its processes."""
    ok: bool
    counts: dict[str, int]
    failures: list[str]


def run(stage: Stage, show: Callable[[str], object]) -> Outcome:
    """Run a stage, passing its output on while it comes."""
    show(f"\n== {stage.name}\n")
    started = time.monotonic()
    counts: dict[str, int] = {}
    failures: list[str] = []
    if shutil.which(stage.command[0]) is None:
        raise FileNotFoundError(f"{stage.name}: there is no {stage.command[0]}")
    with (
        tempfile.NamedTemporaryFile("r") as told,
        subprocess.Popen(
            [sys.executable, "-S", str(TREE_TIME), told.name, *stage.command],
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process,
    ):
        assert process.stdout is not None
        last = ""
        for line in process.stdout:
            show(line)
            # Clients' libraries may write behind it, from threads of their own.
            last = line if SUMMARY.search(line) else last
            if NAMES_FAILURE.search(line):
                failures.append(line.rstrip())
        process.wait()
        cpu_s = float(told.read() or 0)
    if stage.is_counted:
        for number, word in COUNTS.findall(last):
            word = "failed" if word.startswith("error") else word
            counts[word] = counts.get(word, 0) + int(number)
    # 5: a folder without tests yet, which is not a failure of what is there.
    ok = process.returncode == 0 or (stage.is_suite and process.returncode == 5)
    return Outcome(stage, time.monotonic() - started, cpu_s, ok, counts, failures)


def show_at_once(text: str) -> None:
    """Hand it on, also where standard output is a file."""
    sys.stdout.write(text)
    sys.stdout.flush()


class Lanes:
    """Threads that take stages from one queue; each stage's output is printed when it has ended.

    Args:
        stages: in the order in which they begin.
        count: how many run at a time.
    """

    def __init__(self, stages: Sequence[Stage], count: int) -> None:
        self.outcomes: list[Outcome] = []
        self._waiting = deque(stages)
        self._errors: list[Exception] = []
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(count)]

    def _run(self) -> None:
        while self._waiting:
            with contextlib.suppress(IndexError):  # another lane has taken the last one
                self._take(self._waiting.popleft())

    def _take(self, stage: Stage) -> None:
        show_at_once(f"\n{stage.name} begins\n")
        lines: list[str] = []
        try:
            self.outcomes.append(run(stage, lines.append))
        except Exception as error:  # a program that is not there, say
            self._errors.append(error)
        show_at_once("".join(lines))

    def begin(self) -> None:
        """Start, unless they have begun."""
        for thread in self._threads:
            if thread.ident is None:
                thread.start()

    def finish(self) -> list[Outcome]:
        """Wait for all of them; what they came to."""
        self.begin()
        for thread in self._threads:
            thread.join()
        for error in self._errors:
            raise error
        return self.outcomes


def run_all(stages: Sequence[Stage]) -> list[Outcome]:
    """Run stages in their order, those that wait two at a time, and all the while those that are
    `is_beside`."""
    beside_them = Lanes([stage for stage in stages if stage.is_beside], 1)
    others = [stage for stage in stages if not stage.is_beside]
    outcomes: list[Outcome] = []
    beside_them.begin()
    for waits, group in groupby(others, key=lambda stage: stage.waits):
        if waits:
            outcomes += Lanes(list(group), LANES).finish()
        else:
            outcomes += [run(stage, show_at_once) for stage in group]
    outcomes += beside_them.finish()
    ranks = {stage.name: rank for rank, stage in enumerate(stages)}
    return sorted(outcomes, key=lambda found: ranks[found.stage.name])


def is_there(stage: Stage) -> bool:
    """Whether it has anything to run."""
    return not stage.is_suite or any((REPOSITORY / stage.command[-1]).rglob("test_*.py"))


def main() -> int:
    """Returns: the exit status."""
    os.environ.setdefault("PYTEST_ORDER_SEED", SEED)
    started = time.monotonic()
    outcomes = run_all([stage for stage in STAGES if is_there(stage)])
    print(f"\n{'suite':<20} {'seconds':>8} {'budget':>7} {'cpu s':>7}  result")
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
            f" {outcome.cpu_s:7.1f}  {result}{over}"
        )
    for outcome in outcomes:
        if not outcome.ok:
            print(f"\n{outcome.stage.name}:")
            print("\n".join(outcome.failures[:FAILURES_SHOWN]) or "  see its output above")
    cpu_s = sum(outcome.cpu_s for outcome in outcomes)
    print(f"\nall of it: {time.monotonic() - started:.0f} s, {cpu_s:.0f} s of the processor")
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
