"""Acknowledgements of a request are checked, journaled and judged by partition."""

from collections.abc import Mapping

from penstock.groups.errors import GroupError
from penstock.groups.share.messages import Place
from penstock.groups.share.partition import AckBatch, AckFault
from penstock.groups.sharing import OpenShare
from penstock.kafka.share.requests import fault_of_batches


async def acknowledge(
    group: OpenShare,
    member_id: str,
    said: Mapping[Place, list[AckBatch]],
    hidden: Mapping[Place, AckFault],
    *,
    renews: bool,
    epoch: int,
) -> tuple[GroupError, dict[Place, AckFault]]:
    """Take what a member says of records, of the partitions that it may read.

    Args:
        hidden: the faults of partitions that the client may not read.
        renews: whether the request may renew acquisitions.
        epoch: the session's, in the request.

    Returns:
        The error of the whole, and the faults by partition.
    """
    allowed = {place: batches for place, batches in said.items() if place not in hidden}
    wrong = fault_of_batches(allowed, renews=renews, epoch=epoch)
    right = {place: batches for place, batches in allowed.items() if place not in wrong}
    error, faults = await group.acknowledge(member_id, right)
    outcomes = {place: AckFault(GroupError.INVALID_REQUEST, text) for place, text in wrong.items()}
    return error, {**outcomes, **faults, **hidden}
