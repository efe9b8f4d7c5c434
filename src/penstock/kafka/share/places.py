"""Partitions of share groups by the names that administrators give."""

from penstock.groups.share.messages import Place
from penstock.groups.share.partition import UNKNOWN_START
from penstock.groups.sharing import OpenShare
from penstock.model.ids import partition_key
from penstock.state.read.view import Head, StateView


def head_of(view: StateView, place: Place) -> Head | None:
    """Return where a partition's log begins and ends; None: there is none."""
    topic = view.topic_by_id(place[0])
    if topic is None or not 0 <= place[1] < topic.partitions:
        return None
    return view.head(partition_key(topic.topic_key, place[1]))


def lag_of(group: OpenShare, place: Place, head: Head) -> int:
    """Count records that are not yet done with; -1: where the group begins is not known."""
    found = group.machine.deliveries.partitions.get(place)
    if found is None or found.start == UNKNOWN_START:
        return -1
    return max(0, head.next_offset - max(found.start, head.log_start) - found.delivered)
