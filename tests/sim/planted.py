"""Plants known bugs, one at a time, in copies of modules, and sees that the simulation finds them.

`planted/*.patch` holds one bug each; its first lines, starting with "#", say what it does and
which violations show it (`finds: kind, kind`). A header may name a profile (`profile: NAME`) whose
runs are eager for it, and a seed that has shown it (`seed: N`): that seed is tried first, seeds of
the profile next, then all others from the first on, SEEDS_MAX altogether. A bug is found by a seed
that fails with it and passes without it, by whatever violation: what a bug leads to in the end
can't all be foreseen. A bug that isn't found is a hole in the simulation; a patch that doesn't
apply any more has to be written again.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path

HERE = Path(__file__).resolve().parent
TREE = HERE.parents[1]
SEEDS_MAX = 200
FIRST_SEED = 1
SECONDS_MAX = 600
PASSES = "1 passed, 0 failed"
FOUND = re.compile(r"^SEED (\d+): ([a-z-]+):", re.MULTILINE)
FAILS = re.compile(r"^SEED (\d+): .*$", re.MULTILINE)
CHANGED = re.compile(r"^\+\+\+ b/(\S+)", re.MULTILINE)
KERNELS = "src/penstock/kernels"
NO_VIOLATION = "simulation-failed"
"""The kind of a run that the simulation itself could not carry out."""


@dataclass(frozen=True)
class Verdict:
    """What became of one planted bug. `seed`: the one that showed it."""

    patch: str
    found: bool
    kind: str = ""
    seed: int = -1
    detail: str = ""


class CleanTree:
    """The tree without a bug: each seed is run once, at the latest when the first asks for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_seed: dict[int, tuple[threading.Lock, list[str]]] = {}

    def learn(self, seeds: Sequence[int], *, processes: int) -> None:
        """Run seeds that will be asked for: one by one, each would import the product again."""
        output = simulated(seeds, processes=processes, stop_at=len(seeds) + 1)
        failing = {int(match[1]): match[0] for match in FAILS.finditer(output)}
        count = len(seeds) - len(failing)
        if f"{count} passed, {len(failing)} failed" not in output:
            return  # it ended early: each is run when it is asked for
        for seed in seeds:
            self._by_seed[seed] = (threading.Lock(), [failing.get(seed, PASSES)])

    def failure(self, seed: int) -> str:
        """What a seed shows here; "": it passes."""
        with self._lock:
            lock, outputs = self._by_seed.setdefault(seed, (threading.Lock(), []))
        with lock:
            if not outputs:
                outputs.append(simulated([seed]))
            if PASSES in outputs[0]:
                return ""
            return outputs[0]


def header(patch: Path, name: str) -> str:
    """What the lines of a patch before its first file say of a name; "": nothing."""
    match = re.search(rf"^# {name}: (.+)$", patch.read_text(), re.MULTILINE)
    return "" if match is None else match[1].strip()


def what_it_does(patch: Path) -> str:
    """The first line of its header, a sentence."""
    return patch.read_text().splitlines()[0].removeprefix("# ")


def expected_kinds(patch: Path) -> set[str]:
    """The violations that its header names."""
    return {kind.strip() for kind in header(patch, "finds").split(",")} - {""}


def seeds_for(patch: Path, *, first_seed: int, seeds_max: int) -> list[int]:
    """The seeds in the order in which they are tried."""
    from sim.profiles import profile_of

    profile, known = header(patch, "profile"), header(patch, "seed")
    seeds = [int(known)] if known else []
    if profile:
        bent = (seed for seed in count(first_seed) if profile_of(seed).name == profile)
        seeds += islice(bent, seeds_max // 4)
    seeds += range(first_seed, first_seed + seeds_max)
    return list(dict.fromkeys(seeds))[:seeds_max]


def plant(patch: Path, folder: Path) -> Path:
    """Copies of the modules that the patch changes, with the bug in them; the rest of the tree is
    imported from where it is (`run.Planted`): a whole copy would be compiled again, kernels too.

    Raises:
        ValueError: the patch does not apply.
    """
    tree = folder / patch.stem
    for name in changed_by(patch):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(TREE / name, tree / name)
    done = subprocess.run(
        ["patch", "-p1", "--force", "--fuzz=3", "-i", str(patch)],
        cwd=tree,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ValueError(f"{patch.name} does not apply:\n{done.stdout}")
    return tree


def changed_by(patch: Path) -> list[str]:
    """The files that a patch changes, from the tree's root on."""
    return CHANGED.findall(patch.read_text())


def look_for(
    patch: Path,
    folder: Path,
    clean: CleanTree,
    *,
    first_seed: int = FIRST_SEED,
    seeds_max: int = SEEDS_MAX,
) -> Verdict:
    """Simulate the planted tree until a seed fails that passes without the bug."""
    try:
        tree = plant(patch, folder)
    except ValueError as error:
        return Verdict(patch.stem, found=False, detail=str(error))
    left = seeds_for(patch, first_seed=first_seed, seeds_max=seeds_max)
    detail = ""
    try:
        while left:
            output = simulated(left, tree=tree)
            match = FOUND.search(output)
            if match is None:
                detail += output[-2000:]
                break
            seed, kind = int(match[1]), match[2]
            if kind != NO_VIOLATION and not clean.failure(seed):
                return Verdict(patch.stem, found=True, kind=kind, seed=seed)
            detail += f"seed {seed} shows {kind}, and fails without the bug\n"
            left = left[left.index(seed) + 1 :]
    finally:
        shutil.rmtree(tree, ignore_errors=True)
    return Verdict(patch.stem, found=False, detail=detail)


def simulated(
    seeds: Sequence[int], *, tree: Path | None = None, processes: int = 1, stop_at: int = 1
) -> str:
    """Return what the seeds print, in this order, until so many have failed.

    Args:
        tree: of `plant`; None: nothing is planted.
    """
    environment = dict(os.environ)
    if tree is not None:
        environment["PENSTOCK_PLANTED"] = str(tree / "src")
        if (tree / KERNELS).exists():
            # Machine code of the kernels as they are would be found, and none may stay of these.
            environment["PENSTOCK_KERNEL_CACHE"] = "off"
    done = subprocess.run(
        [
            sys.executable,
            str(HERE / "run.py"),
            f"--seeds={','.join(map(str, seeds))}",
            f"--processes={processes}",
            f"--stop-at={stop_at}",
            f"--budget={SECONDS_MAX}",
        ],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


def look_for_all(
    patches: list[Path], *, first_seed: int = FIRST_SEED, processes: int = 2
) -> Iterator[Verdict]:
    """Several at a time; each verdict when it is there."""
    clean = CleanTree()
    known = {int(seed) for patch in patches if (seed := header(patch, "seed"))}
    clean.learn(sorted(known), processes=processes)
    with (
        tempfile.TemporaryDirectory(prefix="penstock-planted-") as folder,
        ThreadPoolExecutor(processes) as pool,
    ):
        looks = [
            pool.submit(look_for, patch, Path(folder), clean, first_seed=first_seed)
            for patch in patches
        ]
        yield from (look.result() for look in as_completed(looks))


def main() -> int:
    """All patches, or those named; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="of patches; none: all")
    parser.add_argument("--one-in", type=int, default=1, help="so many patches: 1 is all of them")
    parser.add_argument("--by", type=int, default=0, help="a number that says which of them")
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    sys.path.insert(0, str(HERE.parent))
    names = arguments.names
    patches = sorted((HERE / "planted").glob("*.patch"))
    if names:
        patches = [patch for patch in patches if patch.stem in names]
    patches = patches[arguments.by % arguments.one_in :: arguments.one_in]
    verdicts = []
    for verdict in look_for_all(
        patches, first_seed=arguments.first_seed, processes=arguments.processes
    ):
        verdicts.append(verdict)
        if verdict.found:
            print(f"  {verdict.patch:<32} {verdict.kind:<24} seed {verdict.seed}", flush=True)
        else:
            print(f"  {verdict.patch:<32} NOT FOUND {verdict.detail}", flush=True)
    failed = sum(not verdict.found for verdict in verdicts)
    print(f"{len(verdicts) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
