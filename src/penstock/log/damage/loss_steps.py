"""Giving up what is damaged of a run, by commands of bounded size. Pure.

A run of a gigabyte may hold ten million batches, and each second of them may be damaged. So a
command keeps at most some pieces of the run; what follows them stays one run, without a sum, which
the next command names in its turn. Where the commands end early, that rest is still damaged, and is
found and given up by the next repair.
"""

from collections.abc import Iterator, Sequence

from penstock.log.damage.salvage import Kept
from penstock.state.commands import KEPT_RUNS_MAX, AcceptLoss
from penstock.state.rows import StoredRun


def loss_steps(
    run: StoredRun, kept: Sequence[Kept], *, runs_max: int = KEPT_RUNS_MAX
) -> Iterator[AcceptLoss]:
    """The commands that leave what is kept of a run, to be committed one after the other.

    Args:
        kept: what is right of the run, ascending; no two adjoin.
        runs_max: how many runs one command may keep, at least 2.
    """
    end = run.position + run.length
    base, position, batches_left, first = run.base_offset, run.position, run.batch_count, 0
    while len(kept) - first > runs_max:
        pieces = list(kept[first : first + runs_max - 1])
        first += len(pieces)
        following = kept[first]
        batches_left -= sum(piece.batch_count for piece in pieces)
        rest = Kept(
            base_offset=following.base_offset,
            end_offset=run.end_offset,
            position=following.position,
            length=end - following.position,
            max_timestamp=run.max_timestamp,
            # At most so many: how many are damaged before is not known.
            batch_count=max(1, batches_left),
            sum=-1,
        )
        yield _command(run, base, position, [*pieces, rest])
        base, position = rest.base_offset, rest.position
    yield _command(run, base, position, kept[first:])


def _command(run: StoredRun, base: int, position: int, kept: Sequence[Kept]) -> AcceptLoss:
    return AcceptLoss(
        partition_key=run.partition_key,
        base_offset=base,
        end_offset=run.end_offset,
        position=position,
        length=run.position + run.length - position,
        wal=run.generation,
        object_key=run.object_key,
        kept=[number for piece in kept for number in piece],
    )
