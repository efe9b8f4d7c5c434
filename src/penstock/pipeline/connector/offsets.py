"""The offsets of a stream as a checkpoint keeps them: versioned JSON. Pure.

    {"version": 1,
     "topics": {"flights": {"id": "0f..", "partitions": {"0": 123},
                            "from": {"0": 100}, "lost": 7}},
     "initial": true}

| field | what it says |
| --- | --- |
| `id` | the topic's id: another one under this name is another topic, and an error |
| `partitions` | the next offset to read, per partition |
| `from` | where this batch begins in partitions that the batch before did not know; else left out |
| `lost` | records that were skipped so far by failOnDataLoss=false; left out at 0 |
| `initial` | what a query that has no checkpoint begins with; otherwise left out |

`from` is there because Spark keeps the end of a batch and nothing of where the first one began: a
query that starts at the latest offset and dies in its first batch would begin it again at a later
one. With `from` the batch that is run again is the same.

A version that isn't known is refused, never guessed. Each version has a golden file, in
tests/golden/connector.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from penstock.model.errors import CorruptDataError, InvalidRequestError

OFFSETS_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicOffsets:
    """The offsets up to which a topic was read. `partitions`: next offsets; `begun`: field
    `from`."""

    topic_id: str
    partitions: Mapping[int, int]
    begun: Mapping[int, int] = field(default_factory=dict)
    lost: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOffsets:
    """The offsets up to which a stream was read, by topic name."""

    topics: Mapping[str, TopicOffsets]
    initial: bool = False

    def settled(self) -> "StreamOffsets":
        """These offsets as a start: without what is said of the batch that they end."""
        return StreamOffsets(
            topics={name: replace(topic, begun={}) for name, topic in self.topics.items()}
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
    answer: dict[str, Any] = {"version": OFFSETS_VERSION, "topics": topics}
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
    if type(version) is not int or version != OFFSETS_VERSION:
        raise InvalidRequestError(
            "read stream",
            "the checkpoint's offsets",
            f"version {version!r} is unknown; this release knows {OFFSETS_VERSION}",
            "run the release that wrote the checkpoint or a later one, or begin a new checkpoint",
        )
    try:
        topics = {name: _topic(entry) for name, entry in value["topics"].items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _corrupt(f"{type(error).__name__}: {error}") from error
    return StreamOffsets(topics=topics, initial=value.get("initial") is True)


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
