"""Share requests are checked here: what they acknowledge, and whether they may do so. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from penstock.groups.share.messages import Place
from penstock.groups.share.partition import AckBatch, Acknowledgement
from penstock.groups.share.sessions import FINAL_EPOCH, INITIAL_EPOCH

RECORDS_MAX: Final = 100_000
"""Offsets of one acknowledged batch that says something else of each."""
_KINDS: Final = frozenset(int(kind) for kind in Acknowledgement)


def acknowledged(topics: Iterable[Any]) -> dict[Place, list[AckBatch]]:
    """Return what a request says of records, by partition; of those alone that it says any of."""
    found: dict[Place, list[AckBatch]] = {}
    for topic in topics:
        if topic.topic_id is None:
            continue
        for partition in topic.partitions:
            if partition.acknowledgement_batches:
                place = (topic.topic_id.bytes, partition.partition_index)
                found.setdefault(place, []).extend(
                    AckBatch(batch.first_offset, batch.last_offset, batch.acknowledge_types)
                    for batch in partition.acknowledgement_batches
                )
    return found


def named(topics: Iterable[Any]) -> list[Place]:
    """Return the partitions that a request names."""
    return [
        (topic.topic_id.bytes, number if isinstance(number, int) else number.partition_index)
        for topic in topics
        if topic.topic_id is not None
        for number in topic.partitions
    ]


def fault_of_request(group_id: str | None, member_id: str | None, epoch: int) -> str:
    """Return the fault of a request besides its records; empty: there is none."""
    if not group_id:
        return "GroupId can't be empty."
    if not member_id:
        return "MemberId can't be empty."
    if epoch < FINAL_EPOCH:
        return f"ShareSessionEpoch is {epoch}, and must be -1 or greater."
    return ""


def fault_of_batches(
    said: Mapping[Place, Sequence[AckBatch]], *, renews: bool, epoch: int
) -> dict[Place, str]:
    """Return what is wrong with batches by themselves, by partition.

    Args:
        renews: the request may renew acquisitions.
    """
    found = {}
    for place, batches in said.items():
        fault = _fault(batches, renews=renews)
        if not fault and epoch == INITIAL_EPOCH:
            fault = "The first request of a session can't acknowledge records."
        if fault:
            found[place] = fault
    return found


def _fault(batches: Sequence[AckBatch], *, renews: bool) -> str:
    before = -1
    for first, last, types in batches:
        if first > last:
            return f"The first offset {first} is above the last, {last}."
        if first <= before:
            return f"The offset {first} does not follow the batch up to {before}."
        if len(types) not in {1, last - first + 1}:
            return f"{len(types)} types are given for {last - first + 1} offsets."
        if len(types) > RECORDS_MAX:
            return f"{len(types)} types are given for one batch, {RECORDS_MAX} may be."
        unknown = [kind for kind in types if kind not in _KINDS]
        if unknown:
            return f"The acknowledge type {unknown[0]} is unknown."
        if Acknowledgement.RENEW in types and not renews:
            return "Renewals are not allowed in this request."
        before = last
    return ""
