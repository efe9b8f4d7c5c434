"""The options of a read, as Kafka users know them: checked once, before anything is asked."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec

from penstock.model.errors import InvalidRequestError
from penstock.pipeline.api_messages import LEASE_MS_MAX
from penstock.pipeline.client import ClientOptions
from penstock.pipeline.connector.given_options import DOOR_OPTIONS, GivenOptions
from penstock.pipeline.connector.group_commits import CommitTarget
from penstock.pipeline.connector.schema import default_columns

EARLIEST: Final = -2
LATEST: Final = -1
"""The value in JSON offsets of Spark's Kafka source."""

Strategy = Literal["error", "latest"]
Mode = Literal["any", "batch", "stream"]
"""`any`: not yet known; only what never is right is refused."""

ISOLATION_OPTION: Final = "kafka.isolation.level"
"""Spark's Kafka source has the same option, whose default is `read_uncommitted`."""
SERVERS_OPTION: Final = "kafka.bootstrap.servers"
_TUNING: Final = (
    "groupidprefix",
    "kafkaconsumer.polltimeoutms",
    "fetchoffset.numretries",
    "fetchoffset.retryintervalms",
)
"""Options of Spark's Kafka source about its client. They don't change what is read, so they are
ignored."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The wanted start or end: one of the three, per partition or for all.

    `each` and `times` are topic -> partition -> offset (EARLIEST and LATEST included) or ms.
    """

    point: int | None = None
    each: dict[str, dict[int, int]] | None = None
    time_ms: int | None = None
    times: dict[str, dict[int, int]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """A user's options for reading, without a secret."""

    api: ClientOptions
    names: tuple[str, ...] | None
    pattern: str | None
    assigned: dict[str, tuple[int, ...]] | None
    starting: Wanted
    ending: Wanted
    strategy: Strategy
    offsets_max: int | None
    offsets_min: int | None
    trigger_delay_ms: int
    partitions_min: int | None
    partition_bytes: int
    parallelism: int | None
    records_max: int | None
    fail_on_data_loss: bool
    columns: tuple[str, ...]
    pushes_filters: bool
    batch_bytes: int
    lease_ms: int
    commits_to: CommitTarget | None
    """The group that gets a stream's offsets."""


READ_OPTIONS: Final = (
    *DOOR_OPTIONS,
    "view",
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "partitionBytes",
    "parallelism",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    ISOLATION_OPTION,
    "includeHeaders",
    "columns",
    "filterPushdown",
    "batchBytes",
    "leaseMs",
    "commitGroup",
    SERVERS_OPTION,
)


def parse(options: Mapping[str, str], *, mode: Mode) -> ReadOptions:
    """Options as Spark hands them over.

    Raises:
        InvalidRequestError: one is unknown, not a value of its kind, or has no place in this mode.
    """
    given = GivenOptions("read", options)
    given.refuse_unknown(READ_OPTIONS, _TUNING)
    if mode == "stream":
        for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
            _refuse(given, name, "a stream has no end", "leave it out, or use spark.read")
    if mode == "batch":
        for name in ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"):
            _refuse(given, name, "a batch has no triggers", "leave it out, or use readStream")
        for name in ("commitGroup", SERVERS_OPTION):
            _refuse(given, name, "a batch commits no offsets", "leave it out, or use readStream")
    names, pattern, assigned = _topics(given)
    starting = _wanted(given, "starting", default=LATEST if mode == "stream" else EARLIEST)
    ending = _wanted(given, "ending", default=LATEST)
    if mode == "batch" and _names_point(starting, LATEST):
        raise given.invalid("startingOffsets", "a batch can't begin at the latest offset")
    if _names_point(ending, EARLIEST):
        raise given.invalid("endingOffsets", "nothing ends at the earliest offset")
    offsets_max = given.integer_found("maxOffsetsPerTrigger", least=1)
    offsets_min = given.integer_found("minOffsetsPerTrigger", least=1)
    if offsets_max is not None and offsets_min is not None and offsets_min > offsets_max:
        raise given.invalid(
            "minOffsetsPerTrigger", f"{offsets_min} is above maxOffsetsPerTrigger, {offsets_max}"
        )
    columns = _columns(given)
    return ReadOptions(
        api=_isolated(given),
        names=names,
        pattern=pattern,
        assigned=assigned,
        starting=starting,
        ending=ending,
        strategy=_strategy(given),
        offsets_max=offsets_max,
        offsets_min=offsets_min,
        trigger_delay_ms=given.duration_ms("maxTriggerDelay", 15 * 60_000),
        partitions_min=given.integer_found("minPartitions", least=1),
        partition_bytes=given.integer("partitionBytes", 64 << 20, least=1),
        parallelism=given.integer_found("parallelism", least=1),
        records_max=given.integer_found("maxRecordsPerPartition", least=1),
        fail_on_data_loss=given.flag("failOnDataLoss", default=True),
        columns=columns,
        pushes_filters=given.flag("filterPushdown", default=False),
        batch_bytes=given.integer("batchBytes", 2 << 20, least=1),
        lease_ms=given.integer("leaseMs", LEASE_MS_MAX, least=0, most=LEASE_MS_MAX),
        commits_to=_commit_target(given),
    )


def ignored(options: Mapping[str, str]) -> list[str]:
    """Names of options of Kafka's source that say how its client works, and say nothing here."""
    return sorted(name for name in options if name.lower() in _TUNING)


# -- which topics ----------------------------------------------------------------------------------


def _topics(
    given: GivenOptions,
) -> tuple[tuple[str, ...] | None, str | None, dict[str, tuple[int, ...]] | None]:
    ways = [name for name in ("subscribe", "subscribePattern", "assign") if given.text(name)]
    if len(ways) != 1:
        detail = "it is missing" if not ways else f"it excludes {' and '.join(ways[1:])}"
        raise InvalidRequestError(
            "read",
            f"option {ways[0] if ways else 'subscribe'}",
            detail,
            "give one of subscribe, subscribePattern and assign",
        )
    if ways == ["subscribe"]:
        names = tuple(dict.fromkeys(given.names("subscribe")))
        if not names:
            raise given.invalid("subscribe", "names no topic")
        return names, None, None
    if ways == ["subscribePattern"]:
        pattern = given.text("subscribePattern").strip()
        try:
            re.compile(pattern)
        except re.error as error:
            raise given.invalid(
                "subscribePattern", f"is not a regular expression: {error}"
            ) from error
        return None, pattern, None
    return None, None, _assigned(given)


def _assigned(given: GivenOptions) -> dict[str, tuple[int, ...]]:
    value = _json(given, "assign")
    example = 'for example {"flights":[0,1]}'
    if not isinstance(value, dict) or not value:
        raise given.invalid("assign", "is not a JSON object of topics", example)
    assigned = {}
    for topic, partitions in value.items():
        if (
            not isinstance(partitions, list)
            or not partitions
            or not all(type(p) is int and p >= 0 for p in partitions)
        ):
            raise given.invalid(
                "assign", f"partitions of {topic!r} are not a list of numbers", example
            )
        assigned[topic] = tuple(sorted(set(partitions)))
    return assigned


# -- where to begin and to end ---------------------------------------------------------------------


def _wanted(given: GivenOptions, side: str, *, default: int) -> Wanted:
    # In the order in which Spark's Kafka source prefers them.
    if f"{side}Timestamp" in given:
        return Wanted(time_ms=given.integer_found(f"{side}Timestamp", least=0))
    name = f"{side}OffsetsByTimestamp"
    if name in given:
        return Wanted(times=_each(given, name, least=0))
    name = f"{side}Offsets"
    text = given.found(name)
    if text is None:
        return Wanted(point=default)
    point = {"earliest": EARLIEST, "latest": LATEST}.get(text.strip().lower())
    if point is not None:
        return Wanted(point=point)
    return Wanted(each=_each(given, name, least=EARLIEST))


def _each(given: GivenOptions, name: str, *, least: int) -> dict[str, dict[int, int]]:
    example = 'for example {"flights":{"0":23,"1":-2}}'
    value = _json(given, name, hint=f"earliest, latest, or {example}")
    if not isinstance(value, dict):
        raise given.invalid(name, "is not a JSON object of topics", example)
    each: dict[str, dict[int, int]] = {}
    for topic, partitions in value.items():
        if not isinstance(partitions, dict):
            raise given.invalid(name, f"{topic!r} has no JSON object of partitions", example)
        each[topic] = {}
        for partition, number in partitions.items():
            if not re.fullmatch(r"[0-9]{1,9}", partition) or type(number) is not int:
                raise given.invalid(name, f"{topic!r} has {partition!r}: {number!r}", example)
            if not least <= number < 2**63:
                raise given.invalid(
                    name, f"{number} of {topic}-{partition} is out of range", example
                )
            each[topic][int(partition)] = number
    return each


def _names_point(wanted: Wanted, point: int) -> bool:
    if wanted.point == point:
        return True
    return any(point in offsets.values() for offsets in (wanted.each or {}).values())


def _refuse(given: GivenOptions, name: str, detail: str, hint: str) -> None:
    if name in given:
        raise given.invalid(name, detail, hint)


def _commit_target(given: GivenOptions) -> CommitTarget | None:
    group, servers = given.text("commitGroup").strip(), given.text(SERVERS_OPTION).strip()
    if group and not servers:
        raise given.invalid(
            "commitGroup",
            f"{SERVERS_OPTION} is missing",
            f"give {SERVERS_OPTION}, for example 127.0.0.1:9092, or leave commitGroup out",
        )
    if servers and not group:
        raise given.invalid(
            SERVERS_OPTION,
            "nothing goes to Kafka's port but the offsets of commitGroup",
            "give url for records, and commitGroup for offsets, or leave it out",
        )
    return CommitTarget(servers=servers, group=group) if group else None


def _isolated(given: GivenOptions) -> ClientOptions:
    isolation = given.one_of(ISOLATION_OPTION, ("read_committed", "read_uncommitted"))
    return msgspec.structs.replace(given.api(), reads_committed=isolation == "read_committed")


def _columns(given: GivenOptions) -> tuple[str, ...]:
    headers = given.flag("includeHeaders", default=False)
    known = {name.lower(): name for name in default_columns(headers=True)}
    if "columns" not in given:
        return default_columns(headers=headers)
    columns = []
    for name in given.names("columns"):
        if name.lower() not in known:
            raise given.invalid(
                "columns", f"{name!r} is not a column", f"there are {', '.join(known)}"
            )
        columns.append(known[name.lower()])
    if not columns or len(set(columns)) != len(columns):
        raise given.invalid("columns", "names no column, or one twice")
    return tuple(columns)


def _strategy(given: GivenOptions) -> Strategy:
    text = given.one_of("startingOffsetsByTimestampStrategy", ("error", "latest"))
    return "latest" if text == "latest" else "error"


def _json(given: GivenOptions, name: str, *, hint: str = "") -> Any:
    try:
        return json.loads(given.text(name))
    except ValueError as error:
        raise given.invalid(name, f"is not JSON: {error}", hint) from error
