"""The options of a read, as Kafka users know them: checked once, before anything is asked.

Names are case-insensitive. An unknown one is an error that names the nearest: an option that is
misspelt and silently ignored reads the wrong records.
"""

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from penstock.model.errors import InvalidRequestError
from penstock.pipeline.connector.schema import default_columns

EARLIEST: Final = -2
LATEST: Final = -1
"""As in JSON offsets of Spark's Kafka source."""

Strategy = Literal["error", "latest"]
Mode = Literal["any", "batch", "stream"]
"""`any`: not yet known; only what never is right is refused."""

_TUNING: Final = (
    "groupidprefix",
    "kafkaconsumer.polltimeoutms",
    "fetchoffset.numretries",
    "fetchoffset.retryintervalms",
)
"""Of Kafka's source: how its client works. They change nothing that is read, so they are let be."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Where to begin or to end: one of the three, per partition or for all.

    `each` and `times` are topic -> partition -> offset (EARLIEST and LATEST included) or ms.
    """

    point: int | None = None
    each: dict[str, dict[int, int]] | None = None
    time_ms: int | None = None
    times: dict[str, dict[int, int]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """What a user asked for. No secret is among them."""

    urls: tuple[str, ...]
    secret_file: str
    objects: str
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
    timeout_ms: int
    deadline_ms: int


READ_OPTIONS: Final = (
    "url",
    "secretFile",
    "objects",
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
    "includeHeaders",
    "columns",
    "filterPushdown",
    "batchBytes",
    "leaseMs",
    "timeoutMs",
    "deadlineMs",
)


def parse(options: Mapping[str, str], *, mode: Mode) -> ReadOptions:
    """Options as Spark hands them over.

    Raises:
        InvalidRequestError: one is unknown, not a value of its kind, or has no place in this mode.
    """
    given = {name.lower(): str(value) for name, value in options.items()}
    _refuse_unknown(given)
    if mode == "stream":
        for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
            _refuse(given, name, "a stream has no end", "leave it out, or use spark.read")
    if mode == "batch":
        for name in ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"):
            _refuse(given, name, "a batch has no triggers", "leave it out, or use readStream")
    names, pattern, assigned = _topics(given)
    starting = _wanted(given, "starting", default=LATEST if mode == "stream" else EARLIEST)
    ending = _wanted(given, "ending", default=LATEST)
    if mode == "batch" and _names_point(starting, LATEST):
        raise _invalid("startingOffsets", "a batch can't begin at the latest offset")
    if _names_point(ending, EARLIEST):
        raise _invalid("endingOffsets", "nothing ends at the earliest offset")
    offsets_max = _integer(given, "maxOffsetsPerTrigger", least=1)
    offsets_min = _integer(given, "minOffsetsPerTrigger", least=1)
    if offsets_max is not None and offsets_min is not None and offsets_min > offsets_max:
        raise _invalid(
            "minOffsetsPerTrigger", f"{offsets_min} is above maxOffsetsPerTrigger, {offsets_max}"
        )
    columns = _columns(given)
    return ReadOptions(
        urls=_urls(given),
        secret_file=given.get("secretfile", ""),
        objects=_one_of(given, "objects", ("auto", "agent", "ambient")),
        names=names,
        pattern=pattern,
        assigned=assigned,
        starting=starting,
        ending=ending,
        strategy=_strategy(given),
        offsets_max=offsets_max,
        offsets_min=offsets_min,
        trigger_delay_ms=_duration_ms(given, "maxTriggerDelay", 15 * 60_000),
        partitions_min=_integer(given, "minPartitions", least=1),
        partition_bytes=_integer(given, "partitionBytes", least=1) or 64 << 20,
        parallelism=_integer(given, "parallelism", least=1),
        records_max=_integer(given, "maxRecordsPerPartition", least=1),
        fail_on_data_loss=_flag(given, "failOnDataLoss", default=True),
        columns=columns,
        pushes_filters=_flag(given, "filterPushdown", default=False),
        batch_bytes=_integer(given, "batchBytes", least=1) or 2 << 20,
        lease_ms=_or(_integer(given, "leaseMs", least=0), 3_600_000),
        timeout_ms=_integer(given, "timeoutMs", least=1) or 30_000,
        deadline_ms=_integer(given, "deadlineMs", least=1) or 120_000,
    )


def ignored(options: Mapping[str, str]) -> list[str]:
    """Names of options of Kafka's source that say how its client works, and say nothing here."""
    return sorted(name for name in options if name.lower() in _TUNING)


# -- which topics ----------------------------------------------------------------------------------


def _topics(
    given: dict[str, str],
) -> tuple[tuple[str, ...] | None, str | None, dict[str, tuple[int, ...]] | None]:
    ways = [name for name in ("subscribe", "subscribePattern", "assign") if given.get(name.lower())]
    if len(ways) != 1:
        detail = "is missing" if not ways else f"excludes {' and '.join(ways[1:])}"
        raise InvalidRequestError(
            "read",
            f"option {ways[0] if ways else 'subscribe'}",
            detail,
            "give one of subscribe, subscribePattern and assign",
        )
    if ways == ["subscribe"]:
        names = tuple(dict.fromkeys(_list(given["subscribe"])))
        if not names:
            raise _invalid("subscribe", "names no topic")
        return names, None, None
    if ways == ["subscribePattern"]:
        pattern = given["subscribepattern"].strip()
        try:
            re.compile(pattern)
        except re.error as error:
            raise _invalid("subscribePattern", f"is no regular expression: {error}") from error
        return None, pattern, None
    return None, None, _assigned(given["assign"])


def _assigned(text: str) -> dict[str, tuple[int, ...]]:
    value = _json("assign", text)
    example = 'for example {"flights":[0,1]}'
    if not isinstance(value, dict) or not value:
        raise _invalid("assign", "is no JSON object of topics", example)
    assigned = {}
    for topic, partitions in value.items():
        if (
            not isinstance(partitions, list)
            or not partitions
            or not all(type(p) is int and p >= 0 for p in partitions)
        ):
            raise _invalid("assign", f"partitions of {topic!r} are no list of numbers", example)
        assigned[topic] = tuple(sorted(set(partitions)))
    return assigned


# -- where to begin and to end ---------------------------------------------------------------------


def _wanted(given: dict[str, str], side: str, *, default: int) -> Wanted:
    # In the order in which Spark's Kafka source prefers them.
    by_time = given.get(f"{side}timestamp")
    if by_time is not None:
        return Wanted(time_ms=_integer(given, f"{side}Timestamp", least=0))
    name = f"{side}OffsetsByTimestamp"
    if name.lower() in given:
        return Wanted(times=_each(name, given[name.lower()], least=0))
    name = f"{side}Offsets"
    text = given.get(name.lower())
    if text is None:
        return Wanted(point=default)
    point = {"earliest": EARLIEST, "latest": LATEST}.get(text.strip().lower())
    if point is not None:
        return Wanted(point=point)
    return Wanted(each=_each(name, text, least=EARLIEST))


def _each(name: str, text: str, *, least: int) -> dict[str, dict[int, int]]:
    example = 'for example {"flights":{"0":23,"1":-2}}'
    value = _json(name, text, hint=f"earliest, latest, or {example}")
    if not isinstance(value, dict):
        raise _invalid(name, "is no JSON object of topics", example)
    each: dict[str, dict[int, int]] = {}
    for topic, partitions in value.items():
        if not isinstance(partitions, dict):
            raise _invalid(name, f"{topic!r} has no JSON object of partitions", example)
        each[topic] = {}
        for partition, number in partitions.items():
            if not re.fullmatch(r"[0-9]{1,9}", partition) or type(number) is not int:
                raise _invalid(name, f"{topic!r} has {partition!r}: {number!r}", example)
            if not least <= number < 2**63:
                raise _invalid(name, f"{number} of {topic}-{partition} is out of range", example)
            each[topic][int(partition)] = number
    return each


def _names_point(wanted: Wanted, point: int) -> bool:
    if wanted.point == point:
        return True
    return any(point in offsets.values() for offsets in (wanted.each or {}).values())


# -- values of each kind ---------------------------------------------------------------------------


def _refuse_unknown(given: dict[str, str]) -> None:
    known = {name.lower(): name for name in READ_OPTIONS}
    for name in sorted(given):
        if name in known or name in _TUNING:
            continue
        if name.startswith("kafka."):
            hint = (
                "give url, the HTTP addresses of Penstock's agents"
                if name == "kafka.bootstrap.servers"
                else "leave it out: no Kafka client takes part in this read"
            )
            raise InvalidRequestError("read", f"option {name}", "is one of Kafka's client", hint)
        near = difflib.get_close_matches(name, known, n=1)
        raise InvalidRequestError(
            "read",
            f"option {name}",
            "is unknown",
            f"did you mean {known[near[0]]}?" if near else f"there are {', '.join(READ_OPTIONS)}",
        )


def _refuse(given: dict[str, str], name: str, detail: str, hint: str) -> None:
    if name.lower() in given:
        raise _invalid(name, detail, hint)


def _urls(given: dict[str, str]) -> tuple[str, ...]:
    urls = tuple(_list(given.get("url", "")))
    if not urls:
        raise _invalid("url", "is missing", "for example http://127.0.0.1:9644, or several")
    for url in urls:
        if not re.match(r"https?://", url):
            raise _invalid("url", f"{url!r} is no http:// or https:// address")
        if "@" in url:
            raise _invalid(
                "url",
                "has a user or password in it",
                "secrets come from PENSTOCK_CLUSTER_SECRET or the option secretFile",
            )
    return urls


def _columns(given: dict[str, str]) -> tuple[str, ...]:
    headers = _flag(given, "includeHeaders", default=False)
    known = {name.lower(): name for name in default_columns(headers=True)}
    if "columns" not in given:
        return default_columns(headers=headers)
    columns = []
    for name in _list(given["columns"]):
        if name.lower() not in known:
            raise _invalid("columns", f"{name!r} is no column", f"there are {', '.join(known)}")
        columns.append(known[name.lower()])
    if not columns or len(set(columns)) != len(columns):
        raise _invalid("columns", "names no column, or one twice")
    return tuple(columns)


def _strategy(given: dict[str, str]) -> Strategy:
    text = _one_of(given, "startingOffsetsByTimestampStrategy", ("error", "latest"))
    return "latest" if text == "latest" else "error"


def _one_of(given: dict[str, str], name: str, values: tuple[str, ...]) -> str:
    """The first of `values` is the default."""
    text = given.get(name.lower(), values[0]).strip().lower()
    if text not in values:
        raise _invalid(name, f"{text!r} is none of {', '.join(values)}")
    return text


def _flag(given: dict[str, str], name: str, *, default: bool) -> bool:
    text = given.get(name.lower())
    if text is None:
        return default
    if text.strip().lower() not in {"true", "false"}:
        raise _invalid(name, f"{text!r} is neither true nor false")
    return text.strip().lower() == "true"


def _integer(given: dict[str, str], name: str, *, least: int) -> int | None:
    text = given.get(name.lower())
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,18}", text.strip()) or int(text) < least:
        raise _invalid(name, f"{text!r} is no whole number of at least {least}")
    return int(text)


_UNITS_MS: Final = {"ms": 1, "": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000}


def _duration_ms(given: dict[str, str], name: str, default: int) -> int:
    text = given.get(name.lower())
    if text is None:
        return default
    match = re.fullmatch(r"([0-9]{1,12})\s*([a-z]*)", text.strip().lower())
    if match is None or match[2] not in _UNITS_MS:
        raise _invalid(name, f"{text!r} is no duration", "for example 500ms, 30s, 15m or 1h")
    return int(match[1]) * _UNITS_MS[match[2]]


def _json(name: str, text: str, *, hint: str = "") -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise _invalid(name, f"is no JSON: {error}", hint) from error


def _list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


def _invalid(name: str, detail: str, hint: str = "") -> InvalidRequestError:
    return InvalidRequestError("read", f"option {name}", detail, hint)
