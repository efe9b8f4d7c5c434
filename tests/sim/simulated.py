"""One run from its seed to what it came to."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from sim.chance import Chance
from sim.history import ViolationError
from sim.world import World
from support.simulated.virtual_loop import StuckError, VirtualLoop, run


@dataclass(slots=True)
class Result:
    """What a run came to."""

    seed: int
    kind: str = ""
    """Of the violation; empty: there was none."""
    detail: str = ""
    trace: int = 0
    steps: int = 0
    virtual_s: float = 0.0
    entries: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def simulate(seed: int, *, verbose: bool = False, scratch: Path | None = None) -> Result:
    """Run one seed."""
    result = Result(seed)
    folder = Path(tempfile.mkdtemp(prefix="penstock-sim-", dir=scratch or scratch_folder()))
    worlds: list[World] = []

    async def main(loop: VirtualLoop) -> None:
        world = World(loop, seed, folder, verbose=verbose)
        worlds.append(world)
        try:
            await world.live()
        finally:
            result.trace = loop.trace
            result.steps = loop.steps
            result.virtual_s = loop.time()

    try:
        # What dead agents would do at their end is no part of the run.
        run(main, Chance(seed ^ 0x5EED), closes_coroutines=False)
        violation = worlds[0].violation
        if violation is not None:
            result.kind, result.detail = violation.kind, str(violation)
    except ViolationError as error:
        result.kind, result.detail = error.kind, str(error)
    except StuckError as error:
        result.kind, result.detail = "stuck", f"stuck: {error}"
    finally:
        for world in worlds:
            world.close()
            result.entries = world.oracle.entries
            result.counts = dict(world.history.counts)
            result.notes = world.notes
        shutil.rmtree(folder, ignore_errors=True)
    return result


def scratch_folder() -> Path | None:
    """Memory, where there is some: replicas are written and thrown away by the thousand."""
    memory = Path("/dev/shm")
    return memory if memory.is_dir() else None
