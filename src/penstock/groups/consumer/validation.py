"""Validates a heartbeat by itself, before its group is looked at. Pure.

Source: GroupMetadataManager of Kafka 4.3, whose messages clients show.
"""

from typing import Final

from penstock.groups.consumer.assignors import ASSIGNORS
from penstock.groups.consumer.member import JOINING_EPOCH, STATIC_LEAVING_EPOCH
from penstock.groups.consumer.messages import Heartbeat, HeartbeatReply, RegexFault
from penstock.groups.errors import GroupError

TOPICS_MAX: Final = 10_000
TOPICS_BYTES_MAX: Final = 512 << 10
"""Names of one subscription: each is looked up whenever a topic changes, and journaled."""


def refused(beat: Heartbeat, regex_fault: RegexFault) -> HeartbeatReply | None:
    """Return the answer to a heartbeat that no group takes; None: a group may take it."""
    fault = fault_of(beat)
    if fault:
        return HeartbeatReply(error=GroupError.INVALID_REQUEST, message=fault)
    if beat.assignor and beat.assignor not in ASSIGNORS:
        known = ", ".join(ASSIGNORS)
        message = f"ServerAssignor {beat.assignor} is not supported. Supported assignors: {known}."
        return HeartbeatReply(error=GroupError.UNSUPPORTED_ASSIGNOR, message=message)
    if beat.regex:
        unreadable = regex_fault(beat.regex)
        if unreadable:
            message = (
                f"SubscribedTopicRegex `{beat.regex}` is not a valid regular expression:"
                f" {unreadable}."
            )
            return HeartbeatReply(error=GroupError.INVALID_REGULAR_EXPRESSION, message=message)
    return None


def fault_of(beat: Heartbeat) -> str:
    """Return the fault of a heartbeat by itself, as Kafka words it; empty: there is none."""
    if not beat.member_id:
        return "MemberId can't be empty."
    if beat.epoch < STATIC_LEAVING_EPOCH:
        return f"MemberEpoch is {beat.epoch}, but must be greater than or equal to -2."
    if beat.epoch == STATIC_LEAVING_EPOCH and beat.instance_id is None:
        return "InstanceId can't be null."
    if beat.epoch == JOINING_EPOCH:
        if beat.rebalance_timeout_ms == -1:
            return "RebalanceTimeoutMs must be provided in first request."
        if beat.owned is None or beat.owned:
            return "TopicPartitions must be empty when (re-)joining."
        if beat.topics is None and beat.regex is None:
            return (
                "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when"
                " (re-)joining."
            )
    if beat.topics is not None:
        length = sum(map(len, beat.topics))
        if len(beat.topics) > TOPICS_MAX or length > TOPICS_BYTES_MAX:
            return (
                f"SubscribedTopicNames are {len(beat.topics)} names of {length} characters,"
                f" {TOPICS_MAX} of {TOPICS_BYTES_MAX} are allowed. Use a regular expression."
            )
    if beat.instance_id == "":
        return "InstanceId can't be empty."
    if beat.rack == "":
        return "RackId can't be empty."
    return ""
