"""Members of share groups need to read the topics of a request, which go by their ids."""

from collections.abc import Iterable

from penstock.groups.share.messages import Place
from penstock.groups.share.partition import AckFault
from penstock.kafka.access import Access, refusal_text
from penstock.kafka.errors import ErrorCode
from penstock.security.acl import Operation
from penstock.state.read.view import StateView


def refusal_of(access: Access, view: StateView, topic_id: bytes) -> ErrorCode:
    """The error of a client that may not read a topic. An id that no topic has is open to all."""
    topic = None if access.is_unbounded else view.topic_by_id(topic_id)
    return ErrorCode.NONE if topic is None else access.topic(Operation.READ, topic.name)


def unreadable(access: Access, view: StateView, places: Iterable[Place]) -> dict[Place, AckFault]:
    """The partitions whose records the client may not acknowledge."""
    found = {}
    for place in places:
        error = refusal_of(access, view, place[0])
        if error:
            found[place] = AckFault(error, refusal_text(error))
    return found
