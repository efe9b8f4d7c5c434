"""Plants known bugs, one at a time, in a copy of the tree, and sees that the simulation finds them.

`planted/*.patch` holds one bug each; its first lines, starting with "#", say what it does and
which violations show it (`finds: kind, kind`). Another violation counts where the tree without the
bug passes the same seed: what a bug leads to in the end can't all be foreseen. A header may name a
profile (`profile: NAME`) whose runs are eager for it: of the SEEDS_MAX seeds those come first. A
bug that isn't found within SEEDS_MAX seeds is a hole in the simulation; a patch that doesn't apply
any more is to be made anew.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
TREE = HERE.parents[1]
SEEDS_MAX = 200
FIRST_SEED = 1
SECONDS_MAX = 600
FOUND = re.compile(r"^SEED (\d+): ([a-z-]+):", re.MULTILINE)


@dataclass(frozen=True)
class Verdict:
    """What became of one planted bug. `seed`: the one that showed it."""

    patch: str
    found: bool
    kind: str = ""
    seed: int = -1
    detail: str = ""


def expected_kinds(patch: Path) -> set[str]:
    """The violations that its header names."""
    match = re.search(r"^# finds: (.+)$", patch.read_text(), re.MULTILINE)
    return set() if match is None else {kind.strip() for kind in match[1].split(",")}


def profile_named(patch: Path) -> str:
    """The profile that its header names; empty: none."""
    match = re.search(r"^# profile: (.+)$", patch.read_text(), re.MULTILINE)
    return "" if match is None else match[1].strip()


def plant(patch: Path, folder: Path) -> Path:
    """A copy of the tree's sources with the bug in it.

    Raises:
        ValueError: the patch does not apply.
    """
    tree = folder / patch.stem
    shutil.copytree(TREE / "src", tree / "src", ignore=shutil.ignore_patterns("__pycache__"))
    done = subprocess.run(
        ["patch", "-p1", "--batch", "--fuzz=3", "-i", str(patch)],
        cwd=tree,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ValueError(f"{patch.name} does not apply:\n{done.stdout}")
    return tree


def look_for(
    patch: Path, folder: Path, *, first_seed: int = FIRST_SEED, seeds_max: int = SEEDS_MAX
) -> Verdict:
    """Simulate the planted tree until something is found."""
    try:
        tree = plant(patch, folder)
    except ValueError as error:
        return Verdict(patch.stem, found=False, detail=str(error))
    output = simulated(first_seed, seeds_max, tree=tree, profile=profile_named(patch))
    shutil.rmtree(tree, ignore_errors=True)
    match = FOUND.search(output)
    if match is None:
        return Verdict(patch.stem, found=False, detail=output[-2000:])
    seed, kind = int(match[1]), match[2]
    if kind not in expected_kinds(patch) and FOUND.search(simulated(seed, 1, tree=TREE)):
        detail = f"seed {seed} shows {kind}, and fails without the bug\n{output[:3000]}"
        return Verdict(patch.stem, found=False, kind=kind, seed=seed, detail=detail)
    return Verdict(patch.stem, found=True, kind=kind, seed=seed)


def simulated(first_seed: int, count: int, *, tree: Path, profile: str = "") -> str:
    """What is printed of so many seeds of a tree, up to the first that fails."""
    done = subprocess.run(
        [
            sys.executable,
            str(HERE / "run.py"),
            f"--base={first_seed}",
            f"--count={count}",
            "--processes=1",
            "--stop-at=1",
            f"--budget={SECONDS_MAX}",
            f"--first={profile}",
        ],
        env={**os.environ, "PENSTOCK_TREE": str(tree)},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


def look_for_all(
    patches: list[Path], *, first_seed: int = FIRST_SEED, processes: int = 2
) -> Iterator[Verdict]:
    """Several at a time; each verdict when it is there."""
    with (
        tempfile.TemporaryDirectory(prefix="penstock-planted-") as folder,
        ThreadPoolExecutor(processes) as pool,
    ):
        looks = [
            pool.submit(look_for, patch, Path(folder), first_seed=first_seed) for patch in patches
        ]
        yield from (look.result() for look in as_completed(looks))


def main() -> int:
    """All patches, or those named; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="of patches; none: all")
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    names = arguments.names
    patches = sorted((HERE / "planted").glob("*.patch"))
    if names:
        patches = [patch for patch in patches if patch.stem in names]
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
