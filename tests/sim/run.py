"""Runs seeds of the simulation: `make sim N=10000`, `make sim SEED=123`.

A seed that breaks a promise is printed with what was broken and how to have it again. Without
`--base` the seeds are new ones at each call. The last line is "N passed, N failed".
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

TESTS = Path(__file__).resolve().parents[1]
SEED_SECONDS_MAX = 25
"""Seconds of CPU after which a seed counts as hung: a busy machine is no defect."""
SEEDS_PER_PROCESS = 20
"""Nothing is collected in a process, which is cheaper to throw away with all that its runs left."""
SHOWN_MAX = 5
NOTES_MAX = 60


_scratch: Path | None = None
"""Where runs keep their files: what those leave that are ended in the middle goes with it."""


class HungError(Exception):
    """A seed took too much time of the processor."""


class Planted(MetaPathFinder):
    """Finds those modules that have another source in a folder: the rest is imported from where it
    always is, with its bytecode and its kernels' machine code.

    Args:
        sources: like `src`, with as many files as differ from it.
    """

    def __init__(self, sources: Path) -> None:
        self._sources = sources

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See the base class."""
        names = fullname.split(".")
        module = self._sources.joinpath(*names).with_suffix(".py")
        package = self._sources.joinpath(*names, "__init__.py")
        if module.is_file():
            return spec_from_file_location(fullname, module)
        if package.is_file():
            inside = [str((TESTS.parent / "src").joinpath(*names))]
            return spec_from_file_location(fullname, package, submodule_search_locations=inside)
        return None


def make_importable() -> None:
    """Find the product, with the modules in the folder that PENSTOCK_PLANTED names, and tests."""
    sys.path[:0] = [str(TESTS.parent / "src"), str(TESTS)]
    planted = os.environ.get("PENSTOCK_PLANTED")
    if planted:
        sys.meta_path.insert(0, Planted(Path(planted)))


@contextmanager
def _alarm() -> Iterator[None]:
    def ring(_number: int, _frame: Any) -> None:
        raise HungError

    signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, SEED_SECONDS_MAX)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def one(seed: int) -> Any:
    """Run a seed in this process."""
    from sim.simulated import Result, simulate

    quiet()
    load_kernels()
    # What a dead agent leaves must not run its `finally` clauses in the middle of something else.
    gc.disable()
    try:
        with _alarm():
            return simulate(seed, scratch=_scratch)
    except HungError:
        return Result(seed, "hung", f"hung: more than {SEED_SECONDS_MAX} s of CPU")
    except Exception as error:
        import traceback

        text = "".join(traceback.format_exception(error))
        return Result(seed, "simulation-failed", f"simulation-failed: {text}")


def load_kernels() -> None:
    """Import what is simulated, before the clock of a seed runs; kernels are compiled where nobody
    has done that before."""
    import sim.simulated  # noqa: F401
    from sim.compactor import load_kernels

    load_kernels()


def quiet() -> None:
    """Thousands of runs full of faults would log without end."""
    import logging
    import warnings

    logging.disable(logging.CRITICAL)
    # Coroutines of agents that died.
    warnings.simplefilter("ignore", RuntimeWarning)


def show(result: Any, *, notes: bool = True) -> str:
    """What a person needs to see of a failed seed."""
    lines = [f"SEED {result.seed}: {result.detail or 'ok'}"]
    if notes and result.kind:
        lines += result.notes[-NOTES_MAX:]
    lines.append(
        f"  trace {result.trace & (2**64 - 1):016x}, {result.steps} callbacks, "
        f"{result.entries} entries, {result.virtual_s:.1f} s of virtual time"
    )
    if result.kind:
        lines.append(f"  again: make sim SEED={result.seed}")
    return "\n".join(lines)


def run_one(seed: int) -> int:
    """Run a seed twice, the second time to see that it is the same."""
    first, second = one(seed), one(seed)
    print("\n".join(first.notes))
    print(show(first, notes=False))
    for name, count in sorted(first.counts.items()):
        print(f"  {name:<40} {count}")
    if (first.trace, first.notes) != (second.trace, second.notes):
        print(f"NOT REPEATABLE: the second time the trace was {second.trace & (2**64 - 1):016x}")
        return 1
    return 1 if first.kind else 0


@contextmanager
def _kept_in(folder: Path) -> Iterator[None]:
    global _scratch
    before, _scratch = _scratch, folder
    try:
        yield
    finally:
        _scratch = before


def run_many(seeds: list[int], *, processes: int, budget_s: float, stop_at: int) -> int:
    """Run seeds until they or the budget are used up; the exit status."""
    started_s = time.monotonic()
    failed: list[Any] = []
    done = 0
    counts: Counter[str] = Counter()
    # Once, and not in each process.
    load_kernels()
    gc.freeze()
    context = multiprocessing.get_context("fork")
    from sim.simulated import scratch_folder

    with (
        tempfile.TemporaryDirectory(
            prefix="penstock-sim-", dir=scratch_folder(), ignore_cleanup_errors=True
        ) as scratch,
        _kept_in(Path(scratch)),
        context.Pool(processes, maxtasksperchild=SEEDS_PER_PROCESS) as pool,
    ):
        for result in pool.imap_unordered(one, seeds):
            done += 1
            counts.update(result.counts)
            counts["entries"] += result.entries
            if result.kind:
                failed.append(result)
                if len(failed) <= SHOWN_MAX:
                    print(show(result), flush=True)
                else:
                    print(f"SEED {result.seed}: {result.detail.splitlines()[0]}", flush=True)
            if len(failed) >= stop_at or time.monotonic() - started_s > budget_s:
                pool.terminate()
                break
    seconds = time.monotonic() - started_s
    print(f"{done} seeds in {seconds:.0f} s, {processes} processes")
    for name, count in counts.most_common(40):
        print(f"  {name:<40} {count}")
    print(f"{done - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


def main() -> int:
    """Returns: the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, help="run this one, twice, with its trace")
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--base", type=int, help="first seed; without it a new one")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--budget", type=float, default=1e9, help="seconds")
    parser.add_argument("--stop-at", type=int, default=20, help="failures after which to stop")
    parser.add_argument("--seeds", default="", help="these, separated by commas, in this order")
    arguments = parser.parse_args()
    make_importable()
    if arguments.seed is not None:
        return run_one(arguments.seed)
    if arguments.seeds:
        seeds = [int(seed) for seed in arguments.seeds.split(",")]
    else:
        base = arguments.base
        if base is None:
            base = int.from_bytes(os.urandom(5), "big")
        print(f"seeds {base} to {base + arguments.count - 1}", flush=True)
        seeds = list(range(base, base + arguments.count))
    return run_many(
        seeds,
        processes=arguments.processes,
        budget_s=arguments.budget,
        stop_at=arguments.stop_at,
    )


if __name__ == "__main__":
    sys.exit(main())
