"""Which offsets a table holds: JSON in the summary of a snapshot, and how it is found again.

    {"version": 1, "topics": {"<topic id>": {"<partition>": next offset, ...}}}

Next offsets: the first that the table does not hold yet.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from penstock.model.errors import CorruptDataError

OFFSETS_PROPERTY: Final = "penstock.offsets"
"""Of a snapshot's summary, and of the table, set in the same commit."""
COMMIT_PROPERTY: Final = "penstock.commit"
"""A random name of one commit, by which one whose reply was lost is found."""
TOPIC_ID_PROPERTY: Final = "penstock.topic-id"
"""Of the table: whose rows these are."""
VERSION: Final = 1


class _Document(msgspec.Struct, frozen=True):
    version: int
    topics: dict[str, dict[str, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What a table holds. `offsets`: partition -> next offset; `source`: where that was found
    ("snapshot", "property", "progress", or "" for a table without any)."""

    offsets: Mapping[int, int]
    source: str
    topics: Mapping[str, Mapping[int, int]]
    """Of all topics whose rows went in, by topic id."""


def encode_offsets(topics: Mapping[str, Mapping[int, int]]) -> str:
    """The property's value. The same offsets always give the same text."""
    document = _Document(
        version=VERSION,
        topics={
            topic_id: {str(partition): offsets[partition] for partition in sorted(offsets)}
            for topic_id, offsets in sorted(topics.items())
        },
    )
    return msgspec.json.encode(document).decode()


def decode_offsets(text: str, *, subject: str) -> dict[str, dict[int, int]]:
    """The inverse of `encode_offsets`.

    Raises:
        CorruptDataError: not this format, or a later version of it.
    """
    try:
        document = msgspec.json.decode(text, type=_Document)
        if document.version != VERSION:
            raise ValueError(f"version {document.version}, this release knows {VERSION}")
        return {
            topic_id: {int(partition): offset for partition, offset in offsets.items()}
            for topic_id, offsets in document.topics.items()
        }
    except ValueError as error:
        raise CorruptDataError(
            "read a table's offsets",
            subject,
            str(error),
            "open it with the release that wrote it, or a later one",
        ) from error


def find_held(
    topic_id: str,
    *,
    table: str,
    summaries: Iterable[Mapping[str, str]],
    is_ancestry_whole: bool,
    properties: Mapping[str, str],
    progress: Mapping[int, int] | None,
) -> Held:
    """What a table holds of a topic.

    The current snapshot's ancestry says it, since it is what readers see: after a rollback an
    older snapshot is the truth, whatever the table's properties or the log's progress say. Only
    where expiry cut the ancestry short before any offsets were met, those two are asked.

    Args:
        summaries: of the current snapshot and its ancestors, nearest first.
        is_ancestry_whole: whether the last of them is the table's first snapshot.
        properties: the table's.
        progress: what the log's door knows of the table.
    """
    for summary in summaries:
        text = summary.get(OFFSETS_PROPERTY)
        if text is not None:
            topics = decode_offsets(text, subject=table)
            return Held(offsets=topics.get(topic_id, {}), source="snapshot", topics=topics)
    if is_ancestry_whole:
        return Held(offsets={}, source="", topics={})
    text = properties.get(OFFSETS_PROPERTY)
    if text is not None:
        topics = decode_offsets(text, subject=table)
        return Held(offsets=topics.get(topic_id, {}), source="property", topics=topics)
    if progress is not None:
        return Held(offsets=progress, source="progress", topics={topic_id: progress})
    return Held(offsets={}, source="", topics={})


def is_property_current(
    *,
    summaries: Iterable[Mapping[str, str]],
    is_ancestry_whole: bool,
    properties: Mapping[str, str],
) -> bool:
    """Whether the table's property says what its snapshots say, so that these may go.

    After a rollback it doesn't until the next commit: `find_held` would then take the property's
    offsets, and what the rollback took would never be written again.

    Args: as of `find_held`.
    """
    held = properties.get(OFFSETS_PROPERTY)
    for summary in summaries:
        text = summary.get(OFFSETS_PROPERTY)
        if text is not None:
            return text == held
    # Without any in a whole ancestry the table holds nothing; in one cut short, what the property
    # says is the truth already.
    return held is None or not is_ancestry_whole
