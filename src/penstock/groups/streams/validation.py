"""Validates a heartbeat by itself, before its group is looked at. Pure.

Source: GroupCoordinatorService of Kafka 4.3.1, whose messages clients show.
"""

from typing import Final

from penstock.groups.consumer.member import JOINING_EPOCH, STATIC_LEAVING_EPOCH
from penstock.groups.errors import GroupError
from penstock.groups.streams.messages import StreamsHeartbeat, StreamsReply
from penstock.groups.streams.topology import TopologyError, check_names, check_shape

_ALL_OR_NONE: Final = "If one task-type is non-null, all must be non-null."


def refused(beat: StreamsHeartbeat) -> StreamsReply | None:
    """Return the answer to a heartbeat that no group takes; None: a group may take it."""
    fault = _unsupported(beat) or _fault_of(beat)
    if fault:
        return StreamsReply(error=GroupError.INVALID_REQUEST, message=fault)
    if beat.topology is not None:
        try:
            check_names(beat.topology)
            check_shape(beat.topology)
        except TopologyError as error:
            return StreamsReply(error=GroupError.STREAMS_INVALID_TOPOLOGY, message=str(error))
    return None


def _unsupported(beat: StreamsHeartbeat) -> str:
    if beat.instance_id is not None:
        return "Static membership is not yet supported."
    if beat.has_offsets:
        return "TaskOffsets are not supported yet."
    if beat.has_end_offsets:
        return "TaskEndOffsets are not supported yet."
    if beat.warmup:
        return "WarmupTasks are not supported yet."
    if beat.has_regexes:
        return "Regular expressions for source topics are not supported yet."
    return ""


def _fault_of(beat: StreamsHeartbeat) -> str:
    if not beat.member_id:
        return "MemberId can't be empty."
    if beat.rack == "":
        return "RackId can't be empty."
    if beat.epoch == JOINING_EPOCH:
        if beat.rebalance_timeout_ms == -1:
            return "RebalanceTimeoutMs must be provided in first request."
        roles = {"Active": beat.active, "Standby": beat.standby, "Warmup": beat.warmup}
        for role, tasks in roles.items():
            if tasks is None or tasks:
                return f"{role}Tasks must be empty when (re-)joining."
        if beat.topology is None:
            return "Topology must be non-null when (re-)joining."
    elif beat.epoch == STATIC_LEAVING_EPOCH:
        return "InstanceId can't be null."
    elif beat.epoch < STATIC_LEAVING_EPOCH:
        return f"MemberEpoch is {beat.epoch}, but must be greater than or equal to -2."
    given = [role is not None for role in (beat.active, beat.standby, beat.warmup)]
    if any(given) and not all(given):
        return _ALL_OR_NONE
    if beat.epoch != JOINING_EPOCH and beat.topology is not None:
        return "Topology can only be provided when (re-)joining."
    return ""
