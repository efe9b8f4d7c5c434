"""Assigns partitions to the members of a share group. Pure.

Each partition has one member at least, each member one partition at least, and shares are as even
as that allows. Members that want other topics are served apart.

Source: SimpleAssignor of Kafka 4.3, in what it promises; which member gets what is this module's.
"""

from collections.abc import Mapping

from penstock.groups.consumer import partitions
from penstock.groups.consumer.partitions import Partitions


def assign(
    wanted: Mapping[str, frozenset[bytes]], counts: Mapping[bytes, int]
) -> dict[str, Partitions]:
    """Return the partitions of each member.

    Args:
        wanted: topic ids by member id.
        counts: partition counts by topic id.
    """
    alike: dict[frozenset[bytes], list[str]] = {}
    for member_id in sorted(wanted):
        alike.setdefault(wanted[member_id], []).append(member_id)
    found: dict[str, Partitions] = {}
    for topic_ids, member_ids in alike.items():
        places = [
            (topic_id, number)
            for topic_id in sorted(topic_ids)
            for number in range(counts.get(topic_id, 0))
        ]
        for at, member_id in enumerate(member_ids):
            if len(member_ids) > len(places):
                own = places[at % len(places) :][:1] if places else []
            else:
                own = places[at :: len(member_ids)]
            found[member_id] = partitions.of((topic_id, (number,)) for topic_id, number in own)
    return found
