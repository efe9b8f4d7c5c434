"""An object of a repair: put under a number of this agent, and named by `RestoreRuns`."""

from collections.abc import Sequence

from penstock.log.numbered_put import put_numbered
from penstock.log.numbers import ObjectNumbers
from penstock.model.errors import RetryableError
from penstock.ports.objects import ObjectStore
from penstock.segment import BuiltSegment
from penstock.state.answers import Refusal, RunsRestored
from penstock.state.commands import RestoredRun, RestoreRuns
from penstock.state.order_types import Committer


async def put_restored(
    built: BuiltSegment,
    runs: Sequence[RestoredRun],
    *,
    store: ObjectStore,
    numbers: ObjectNumbers,
    committer: Committer,
    rebuilt: bool,
) -> list[Refusal | None]:
    """Put an object and name it in one entry.

    Args:
        runs: what the object holds, at positions of the object.
        rebuilt: whether the records were encoded again, so that no sum proves them.

    Returns:
        Per run why apply refused it; None: it is restored.

    Raises:
        RetryableError: store or journal is away, or the object was refused as a whole. The object
            is left to the keeper, as it is where each run was refused.
    """
    number = await put_numbered(store, numbers, built.parts)
    is_named = False
    try:
        command = RestoreRuns(
            object_key=numbers.key(number),
            object_bytes=built.size_bytes,
            runs=list(runs),
            rebuilt=rebuilt,
        )
        (answer,) = await committer.commit([command])
        if not isinstance(answer, RunsRestored):
            raise RetryableError("restore runs", command.object_key, str(answer))
        is_named = not all(answer.codes)
    finally:
        numbers.end(number, named=is_named)
    return [Refusal(code) if code else None for code in answer.codes]
