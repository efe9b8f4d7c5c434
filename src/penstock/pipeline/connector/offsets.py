"""The offsets of a stream as a checkpoint keeps them: versioned JSON. Pure.

docs/formats/stream-offsets.md describes both versions: offsets of the log alone, and those of a
table that is read before its log. A version that isn't known is refused, never guessed. Each
version has a golden file, in tests/golden/connector.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from penstock.model.errors import CorruptDataError, InvalidRequestError

OFFSETS_VERSION: Final = 2
LOG_VERSION: Final = 1
"""A stream of the log alone writes this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicOffsets:
    """The offsets up to which a topic was read. `partitions`: next offsets; `begun`: field
    `from`."""

    topic_id: str
    partitions: Mapping[int, int]
    begun: Mapping[int, int] = field(default_factory=dict)
    lost: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOffsets:
    """The position in a table's snapshot: how many of its files, in their order, were read.

    Args:
        snapshot_id: 0: the table had none, and so no files.
        files_sum: `sum` of the format: the files are those that were counted.
        pin: the job that holds snapshot and log back; 0: none.
    """

    name: str
    snapshot_id: int
    files: int
    files_sum: int
    read: int
    pin: int = 0

    @property
    def is_read(self) -> bool:
        """Whether the stream has come to the log."""
        return self.read == self.files


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOffsets:
    """The offsets up to which a stream was read, by topic name; `table`: of a stream that reads a
    table before the log."""

    topics: Mapping[str, TopicOffsets]
    initial: bool = False
    table: TableOffsets | None = None

    def settled(self) -> "StreamOffsets":
        """These offsets as a start: without what is said of the batch that they end."""
        return StreamOffsets(
            topics={name: replace(topic, begun={}) for name, topic in self.topics.items()},
            table=self.table,
        )


def to_json(offsets: StreamOffsets) -> dict[str, Any]:
    """Encode in the form that Spark keeps. Topics and partitions are sorted: Spark compares
    texts."""
    topics = {}
    for name, topic in sorted(offsets.topics.items()):
        entry: dict[str, Any] = {"id": topic.topic_id, "partitions": _numbered(topic.partitions)}
        if topic.begun:
            entry["from"] = _numbered(topic.begun)
        if topic.lost:
            entry["lost"] = topic.lost
        topics[name] = entry
    version = LOG_VERSION if offsets.table is None else OFFSETS_VERSION
    answer: dict[str, Any] = {"version": version, "topics": topics}
    if offsets.table is not None:
        answer["table"] = _table_entry(offsets.table)
    if offsets.initial:
        answer["initial"] = True
    return answer


def from_json(value: Any) -> StreamOffsets:
    """Read what `to_json` gave, in this or an earlier release.

    Raises:
        InvalidRequestError: the version isn't known here.
        CorruptDataError: no version gives such a value.
    """
    if not isinstance(value, dict):
        raise _corrupt(f"{value!r} is not a JSON object")
    version = value.get("version")
    if type(version) is not int or version not in (LOG_VERSION, OFFSETS_VERSION):
        raise InvalidRequestError(
            "read stream",
            "the checkpoint's offsets",
            f"version {version!r} is unknown; this release knows {LOG_VERSION} and "
            f"{OFFSETS_VERSION}",
            "run the release that wrote the checkpoint or a later one, or begin a new checkpoint",
        )
    try:
        topics = {name: _topic(entry) for name, entry in value["topics"].items()}
        table = None if version == LOG_VERSION else _table(value["table"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _corrupt(f"{type(error).__name__}: {error}") from error
    return StreamOffsets(topics=topics, initial=value.get("initial") is True, table=table)


def _table_entry(table: TableOffsets) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "name": table.name,
        "snapshot": table.snapshot_id,
        "files": table.files,
        "sum": table.files_sum,
        "read": table.read,
    }
    if table.pin:
        entry["pin"] = table.pin
    return entry


def _table(entry: Mapping[str, Any]) -> TableOffsets:
    if not isinstance(entry["name"], str):
        raise TypeError(f"name {entry['name']!r}")
    table = TableOffsets(
        name=entry["name"],
        snapshot_id=_number(entry["snapshot"]),
        files=_number(entry["files"]),
        files_sum=_number(entry["sum"]),
        read=_number(entry["read"]),
        pin=_number(entry.get("pin", 0)),
    )
    if table.read > table.files:
        raise ValueError(f"{table.read} of {table.files} files are read")
    return table


def _topic(entry: Mapping[str, Any]) -> TopicOffsets:
    topic_id = entry["id"]
    if not isinstance(topic_id, str):
        raise TypeError(f"id {topic_id!r}")
    return TopicOffsets(
        topic_id=topic_id,
        partitions=_parsed(entry["partitions"]),
        begun=_parsed(entry.get("from", {})),
        lost=_number(entry.get("lost", 0)),
    )


def _numbered(offsets: Mapping[int, int]) -> dict[str, int]:
    return {str(partition): offset for partition, offset in sorted(offsets.items())}


def _parsed(offsets: Mapping[str, Any]) -> dict[int, int]:
    return {int(partition): _number(offset) for partition, offset in offsets.items()}


def _number(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is not an offset")
    return value


def _corrupt(detail: str) -> CorruptDataError:
    return CorruptDataError(
        "read stream", "the checkpoint's offsets", detail, "begin a new checkpoint"
    )
