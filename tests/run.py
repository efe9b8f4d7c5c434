"""Run lint and every suite of tests, and print what each took against its budget.

A suite is a folder of tests; one that does not exist is left out. A budget is twice what a quiet
machine of two cores took; a suite above it is marked and fails nothing, since a busy machine is no
defect.
What simulates computes all the time, in time of its own; suites of real processes wait half the
time. So the simulations run beside those suites, at the lowest priority, which takes no core from a
process under test. What they print is kept, and printed when the suite beside them has ended.
Order, Hypothesis' examples and the simulation's seeds follow from the tree of the last commit: the
same tree has the same ones wherever it is tested, so that what failed is met again, and each commit
has new ones. So does the third of the planted bugs that is looked for; `make planted` looks for all
of them. Seeds of `make unit` and `make sim` are new in each run.
What failed is named again below the table, since the output above it is long.
The last line is read by CI: "N passed, N failed".
"""

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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
    is_beside: bool = False
    """It runs while the stages do that wait."""
    waits: bool = False
    """It leaves the processor half idle, and may run while others compute."""


def waiting(stage: Stage) -> Stage:
    """A stage during which others may compute."""
    return replace(stage, waits=True)


def beside(stage: Stage) -> Stage:
    """A stage that runs while others wait, at the lowest priority."""
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
    suite("tests/unit", 500, *IN_THREE),
    suite("tests/packaging", 30),
    # In this order: the last ones may still run when nothing waits any more.
    beside(suite("tests/sim", 800)),
    beside(program("seeds", 600, "tests/sim/run.py", f"--base={SEED}", "--count=150")),
    beside(program("planted bugs", 600, "tests/sim/planted.py", f"--by={SEED}", "--one-in=3")),
    waiting(suite("tests/crash", 320, *IN_THREE)),
    waiting(suite("tests/cluster", 500, *IN_THREE)),
    waiting(suite("tests/clients", 280, *IN_TWO)),
    waiting(suite("tests/chaos", 200)),
    waiting(suite("tests/demo", 80)),
    suite("tests/spark", 390, *IN_TWO),
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


def run(stage: Stage, show: Callable[[str], object]) -> Outcome:
    """Run a stage, passing its output on while it comes."""
    show(f"\n== {stage.name}\n")
    started = time.monotonic()
    counts: dict[str, int] = {}
    failures: list[str] = []
    with subprocess.Popen(
        stage.command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        last = ""
        for line in process.stdout:
            show(line)
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


def show_at_once(text: str) -> None:
    """Hand it on, also where standard output is a file."""
    sys.stdout.write(text)
    sys.stdout.flush()


class Beside:
    """Stages that run one after the other in a thread; what they print waits for `tell`."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        self.outcomes: list[Outcome] = []
        self._stages = stages
        self._ended: list[list[str]] = []
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        for stage in self._stages:
            lines: list[str] = []
            try:
                outcome = run(stage, lines.append)
            except Exception as error:  # a program that is not there, say
                self._error = error
                return
            self._ended.append(lines)
            self.outcomes.append(outcome)

    def begin(self) -> None:
        """Start, unless it has begun."""
        if self._thread.ident is None:
            self._thread.start()

    def tell(self) -> None:
        """Print what has ended since the last call."""
        while self._ended:
            show_at_once("".join(self._ended.pop(0)))

    def finish(self) -> None:
        """Wait for all of them."""
        self.begin()
        self._thread.join()
        self.tell()
        if self._error is not None:
            raise self._error


def run_all(stages: Sequence[Stage]) -> list[Outcome]:
    """Run stages in their order, those `is_beside` from the first on that waits."""
    beside_them = Beside([stage for stage in stages if stage.is_beside])
    outcomes: list[Outcome] = []
    for stage in stages:
        if stage.is_beside:
            continue
        if stage.waits:
            beside_them.begin()
        outcomes.append(run(stage, show_at_once))
        beside_them.tell()
    beside_them.finish()
    ranks = {stage.name: rank for rank, stage in enumerate(stages)}
    return sorted([*outcomes, *beside_them.outcomes], key=lambda found: ranks[found.stage.name])


def is_there(stage: Stage) -> bool:
    """Whether it has anything to run."""
    return not stage.is_suite or any((REPOSITORY / stage.command[-1]).rglob("test_*.py"))


def main() -> int:
    """Returns: the exit status."""
    os.environ.setdefault("PYTEST_ORDER_SEED", SEED)
    started = time.monotonic()
    outcomes = run_all([stage for stage in STAGES if is_there(stage)])
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
    print(f"\nall of it: {time.monotonic() - started:.0f} s")
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
