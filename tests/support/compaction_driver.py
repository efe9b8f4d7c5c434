"""A compaction driver in a process of its own that kills itself at a step.

    python -m support.compaction_driver URL ENGINE STEP

ENGINE: local or spark. STEP: one of STEPS, "stalled" to stop before a commit until somebody
continues it, or "" to go on to the end. Prints its summary.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

STEPS = ("opened", "planned", "putting", "put", "committing", "committed")
SPARK_STEPS = ("committing", "committed")
"""Those of a Spark driver: what its tasks do, they do in other processes."""
LEASE_MS = 4000
"""Of a driver that is to die, whose lease's end tests wait for. It must not be over before, on a
machine that lets a process wait for seconds."""


def die(*_: Any, **__: Any) -> Any:
    """End this process as a crash would."""
    os.kill(os.getpid(), signal.SIGKILL)


def before(call: Callable[..., Any]) -> Callable[..., Any]:
    """A call that is never made."""
    del call
    return die


def stalled(call: Callable[..., Any]) -> Callable[..., Any]:
    """A call that is made when the process is continued."""

    def stop_first(*arguments: Any, **named: Any) -> Any:
        os.kill(os.getpid(), signal.SIGSTOP)
        return call(*arguments, **named)

    return stop_first


def after(call: Callable[..., Any]) -> Callable[..., Any]:
    """A call whose answer nobody hears."""

    def then_die(*arguments: Any, **named: Any) -> Any:
        call(*arguments, **named)
        die()

    return then_die


class KilledOnce:
    """A task whose process dies at the first attempt, before or after it has put its object."""

    def __init__(self, task: Any, step: str, marker: str) -> None:
        self.task, self.step, self.marker = task, step, marker

    def __call__(self, item: Any) -> Any:
        from penstock.pipeline.objects import ObjectAccess

        whole = ObjectAccess.put
        if is_first(self.marker):
            ObjectAccess.put = (before if self.step == "putting" else after)(whole)  # type: ignore[method-assign]
        try:
            return self.task(item)
        finally:
            ObjectAccess.put = whole  # type: ignore[method-assign]


def is_first(marker: str) -> bool:
    """Whether no process has come here before; two may come at the same time."""
    try:
        Path(marker).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def main(url: str, engine_name: str, step: str) -> None:
    """Compact."""
    from penstock.pipeline.client import ClientOptions, PipelineClient
    from penstock.pipeline.compaction import job as compaction
    from penstock.pipeline.compaction.items import CompactionSettings
    from penstock.pipeline.engine import Engine, LocalEngine
    from penstock.pipeline.lease import JobLease
    from penstock.pipeline.objects import ObjectAccess

    if step and engine_name == "local":  # whose lease's end is waited for
        module: Any = compaction
        module.JobLease = functools.partial(JobLease, lease_ms=LEASE_MS)
    match step:
        case "opened":
            compaction.plan_compaction = die
        case "planned":
            compaction.with_producers = after(compaction.with_producers)
        case "putting":
            ObjectAccess.put = before(ObjectAccess.put)  # type: ignore[method-assign]
        case "put":
            ObjectAccess.put = after(ObjectAccess.put)  # type: ignore[method-assign]
        case "committing":
            PipelineClient.replace = before(PipelineClient.replace)  # type: ignore[method-assign]
        case "stalled":
            PipelineClient.replace = stalled(PipelineClient.replace)  # type: ignore[method-assign]
        case "committed":
            PipelineClient.replace = after(PipelineClient.replace)  # type: ignore[method-assign]
    settings = CompactionSettings(item_partitions_max=1)
    if engine_name == "spark":
        from penstock.pipeline.session import session
        from penstock.pipeline.spark_engine import SparkEngine

        engine: Engine = SparkEngine(session("local[2]", memory="512m"))
    else:
        engine = LocalEngine(2)
    with PipelineClient(ClientOptions(urls=(url,))) as client:
        summary = compaction.compact(client, engine, settings)
    print(msgspec.json.encode(summary).decode())


if __name__ == "__main__":
    main(*sys.argv[1:])
