"""A table's offsets are JSON in the summary of a snapshot, where they are found again. Pure.

    {"version": 1, "topics": {"<topic id>": {"<partition>": next offset, ...}},
     "epochs": {"<topic id>": {"<partition>": leader epoch, ...}}}

Next offsets: the first that the table does not hold yet. Leader epochs: of the record before it, by
which a log that was restored to before that record is known, also once it has grown past it again;
releases before this one said none, and pass over them. Snapshots of others, such as joined files,
say none: what they hold is what their ancestors say, and where these are expired, what the table's
property of all that is current says. After a rollback to one of them that would be too much, so
that each commit on top of such snapshots notes in another property what they held:

    {"version": 1, "groups": [{"sequences": [sequence number, ...], "topics": {...},
                               "epochs": {...}}, ...]}

Where the first document is longer than INLINE_BYTES_MAX it lies in a file of the table's folder
FOLDER, and the summary names that, since Iceberg's metadata repeats all summaries at each commit:

    {"version": 2, "topics": {}, "file": "<URL>"}
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

import msgspec

from penstock.model.errors import CorruptDataError

OFFSETS_PROPERTY: Final = "penstock.offsets"
"""A property of a snapshot's summary, and of the table, set in the same commit."""
SILENT_PROPERTY: Final = "penstock.offsets-of-others"
"""The table's property with the offsets of snapshots that have none in their summary."""
COMMIT_PROPERTY: Final = "penstock.commit"
"""A random name of one commit, by which one whose reply was lost is found."""
TOPIC_ID_PROPERTY: Final = "penstock.topic-id"
"""The table's property with the id of the topic whose rows these are."""
BEGIN_PROPERTY: Final = "penstock.begin"
"""The table's property with next offsets where it holds nothing yet, if it doesn't begin at the
log's start."""
VERSION: Final = 1
_FILE_VERSION: Final = 2
"""A document that names another one; releases that don't know of it refuse it by its number."""
INLINE_BYTES_MAX: Final = 2048
FOLDER: Final = "penstock-offsets"
"""In a table's location."""
Read = Callable[[str], bytes]
"""(URL of a file) -> what it holds."""


class _Document(msgspec.Struct, frozen=True, omit_defaults=True):
    version: int
    topics: dict[str, dict[str, int]]
    epochs: dict[str, dict[str, int]] = {}


class _Named(msgspec.Struct, frozen=True):
    version: int = 0
    topics: dict[str, dict[str, int]] = {}
    """None: without them older releases would not come to the version."""
    file: str = ""


class _Group(msgspec.Struct, frozen=True, omit_defaults=True):
    """Snapshots that say nothing and hold the same."""

    sequences: list[int]
    topics: dict[str, dict[str, int]]
    epochs: dict[str, dict[str, int]] = {}


class _SilentDocument(msgspec.Struct, frozen=True):
    version: int
    groups: list[_Group]


_D = TypeVar("_D", _Document, _SilentDocument)


@dataclass(frozen=True, slots=True)
class Holdings:
    """The records that went into a table, by topic id and partition.

    Args:
        topics: next offsets.
        epochs: leader epochs of the records before them, as far as they are known.
    """

    topics: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    epochs: Mapping[str, Mapping[int, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """The current snapshot and its ancestors, as far as they are left, nearest first.

    Args:
        sequences: their sequence numbers.
        summaries: their summaries' properties.
        is_whole: whether the last of them is the table's first snapshot.
    """

    sequences: Sequence[int]
    summaries: Sequence[Mapping[str, str]]
    is_whole: bool

    @property
    def silent_count(self) -> int:
        """Return the number of snapshots before the first that has offsets."""
        for count, summary in enumerate(self.summaries):
            if OFFSETS_PROPERTY in summary:
                return count
        return len(self.summaries)

    @property
    def said(self) -> str | None:
        """The offsets that the nearest says."""
        count = self.silent_count
        return self.summaries[count][OFFSETS_PROPERTY] if count < len(self.summaries) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """The part of a topic that a table holds. `offsets`: partition -> next offset; `epochs`:
    partition -> leader epoch of the record before, where it is known; `source`: where that was
    found ("snapshot", "silent", "property", "progress", "begin", or "" for a table without any)."""

    offsets: Mapping[int, int]
    epochs: Mapping[int, int]
    source: str
    holdings: Holdings
    """The holdings of all topics whose rows went in."""


def encode_offsets(holdings: Holdings) -> str:
    """The property's value. The same offsets and epochs always give the same text."""
    topics, epochs = _as_keys(holdings.topics), _as_keys(holdings.epochs)
    document = _Document(version=VERSION, topics=topics, epochs=epochs)
    return msgspec.json.encode(document).decode()


def encode_file(url: str) -> str:
    """The property's value where the document lies in a file."""
    return msgspec.json.encode(_Named(version=_FILE_VERSION, file=url)).decode()


def offsets_file(text: str | None) -> str:
    """The file that a property's value names; "": it holds the offsets itself, or is none."""
    try:
        named = msgspec.json.decode(text or "{}", type=_Named)
    except ValueError:
        return ""
    return named.file if named.version == _FILE_VERSION else ""


def decode_offsets(text: str, *, subject: str, read: Read | None = None) -> Holdings:
    """The inverse of `encode_offsets`, or of `encode_file`.

    Args:
        read: reads the file that the text names; None: it can't name any.

    Raises:
        CorruptDataError: not this format, or a later version of it.
    """
    url = offsets_file(text)
    if url and read is not None:
        try:
            text = read(url).decode()
        except ValueError as error:
            raise _unreadable(subject, error) from error
    return _holdings(_decoded(text, _Document, subject), subject)


def encode_silent(
    lineage: Lineage,
    holdings: Holdings,
    *,
    known: str | None,
    left: Collection[int],
    subject: str,
) -> str | None:
    """SILENT_PROPERTY's value for a commit on top of a lineage; None where it stays as it is.

    Args:
        holdings: what the table holds before that commit.
        known: the property's value until now.
        left: sequence numbers of all snapshots that the table has; of others nothing is kept.

    Raises:
        CorruptDataError: `known` is not of this format, or of a later version.
    """
    count = lineage.silent_count
    if not count:
        return None
    added = lineage.sequences[:count]
    kept = set(left).difference(added)
    groups = [
        _Group([number for number in group.sequences if number in kept], group.topics)
        for group in _groups(known, subject)
    ]
    groups = [group for group in groups if group.sequences]
    groups.append(_Group(sorted(added), _as_keys(holdings.topics), _as_keys(holdings.epochs)))
    return msgspec.json.encode(_SilentDocument(version=VERSION, groups=groups)).decode()


def find_held(
    topic_id: str,
    *,
    table: str,
    lineage: Lineage,
    properties: Mapping[str, str],
    progress: Mapping[int, int] | None,
    read: Read | None = None,
) -> Held:
    """Find what a table holds of a topic.

    The current snapshot's ancestry says it, since readers see that snapshot: after a rollback an
    older snapshot is the truth, whatever the table's properties or the log's progress say. Only
    where expiry
    has cut the ancestry short before any offsets, the properties and the progress are asked: first
    whether the remaining snapshots are from before the table's last rows.

    Args:
        properties: the table's properties.
        progress: the journal's note of the table's progress.
        read: see `decode_offsets`.
    """
    source, holdings = "", Holdings()
    silent = _held_in_silence(lineage, properties, table)
    text = properties.get(OFFSETS_PROPERTY)
    if lineage.said is not None:
        source, holdings = "snapshot", decode_offsets(lineage.said, subject=table, read=read)
    elif lineage.is_whole:
        begin = properties.get(BEGIN_PROPERTY)
        if begin is not None:
            source, holdings = "begin", decode_offsets(begin, subject=table)
    elif silent is not None:
        source, holdings = "silent", silent
    elif text is not None:
        source, holdings = "property", decode_offsets(text, subject=table, read=read)
    elif progress is not None:
        # The log's own, and so of what it was restored to.
        source, holdings = "progress", Holdings({topic_id: dict(progress)})
    return Held(
        offsets=holdings.topics.get(topic_id, {}),
        epochs=holdings.epochs.get(topic_id, {}),
        source=source,
        holdings=holdings,
    )


def is_property_current(lineage: Lineage, properties: Mapping[str, str], *, table: str) -> bool:
    """Whether the table's property says what its snapshots say, so that these may go.

    After a rollback it doesn't until the next commit: `find_held` would then take the property's
    offsets, and what the rollback took would never be written again.
    """
    held = properties.get(OFFSETS_PROPERTY)
    if lineage.said is not None:
        return lineage.said == held
    if lineage.is_whole:
        # Without any in a whole ancestry the table holds nothing.
        return held is None
    # In one cut short, what the property says is the truth already, unless it is from before.
    return _held_in_silence(lineage, properties, table) is None


def _held_in_silence(
    lineage: Lineage, properties: Mapping[str, str], subject: str
) -> Holdings | None:
    """Return what a lineage without offsets holds, if rows were once committed on top of it."""
    if not lineage.sequences or lineage.said is not None:
        return None
    oldest = lineage.sequences[-1]
    for group in _groups(properties.get(SILENT_PROPERTY), subject):
        if oldest in group.sequences:
            return _holdings(group, subject)
    return None


def _groups(text: str | None, subject: str) -> list[_Group]:
    return [] if text is None else _decoded(text, _SilentDocument, subject).groups


def _decoded(text: str, kind: type[_D], subject: str) -> _D:
    try:
        document = msgspec.json.decode(text, type=kind)
        if document.version != VERSION:
            raise ValueError(f"version {document.version}, this release knows {VERSION}")
    except ValueError as error:
        raise _unreadable(subject, error) from error
    return document


def _holdings(found: _Document | _Group, subject: str) -> Holdings:
    try:
        return Holdings(_as_numbers(found.topics), _as_numbers(found.epochs))
    except ValueError as error:
        raise _unreadable(subject, error) from error


def _unreadable(subject: str, error: ValueError) -> CorruptDataError:
    return CorruptDataError(
        "read a table's offsets",
        subject,
        str(error),
        "open it with the release that wrote it, or a later one",
    )


def _as_keys(topics: Mapping[str, Mapping[int, int]]) -> dict[str, dict[str, int]]:
    return {
        topic_id: {str(partition): offsets[partition] for partition in sorted(offsets)}
        for topic_id, offsets in sorted(topics.items())
    }


def _as_numbers(topics: Mapping[str, Mapping[str, int]]) -> dict[str, dict[int, int]]:
    """Raises: ValueError: a partition is not a number."""
    return {
        topic_id: {int(partition): offset for partition, offset in offsets.items()}
        for topic_id, offsets in topics.items()
    }
