"""`produce` reads records from lines of text, and `consume` prints records as such lines. Pure.

Format `text`: the value; with a key separator, the key, the separator and the value.
Format `json`: one object per line with key, value, headers, timestamp (ms since the epoch),
partition and, when printed, topic and offset (accepted and ignored when read). Keys and values are
UTF-8 text, null, or {"base64": "..."} for bytes that aren't UTF-8; a JSON value other than text is
produced as its JSON. A tombstone says `"value": null`: a line without a value, or with an unknown
field, is refused, since a misspelt name would otherwise delete its key's record.
"""

from __future__ import annotations

import base64
import binascii
import difflib
import json
from collections.abc import Sequence
from json.encoder import encode_basestring
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.cli.client.producing import Headers, NewRecord
from penstock.model.errors import InvalidRequestError

if TYPE_CHECKING:
    from confluent_kafka import Message

FIELDS: Final = ("key", "value", "headers", "timestamp", "partition", "topic", "offset")
"""The fields that a line of JSON may have."""
TIMESTAMP_MIN: Final = -1
"""The timestamp of a record that has none."""
TIMESTAMP_MAX: Final = (1 << 63) - 2
"""The greatest timestamp. Its difference to the least one still fits 64 bits, as a batch needs."""


class Place:
    """The place of a line, for errors. One object is moved from line to line."""

    __slots__ = ("number", "source")

    def __init__(self, source: str, number: int) -> None:
        self.source = source
        self.number = number

    def __str__(self) -> str:
        return f"{self.source} line {self.number}"


class _PlainLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A line of JSON that has texts and numbers only, as nearly all lines do."""

    value: str | None
    key: str | None = None
    headers: list[tuple[str, str | None]] | None = None
    timestamp: int | None = None
    partition: int | None = None
    topic: object = None
    offset: object = None


_PLAIN: Final = msgspec.json.Decoder(_PlainLine)


def read_text_line(
    line: bytes, *, key_separator: bytes, headers: Headers, place: Place
) -> NewRecord:
    """Read a record from a line of text with a key.

    Args:
        line: the line without its end.
        headers: the headers of the record.

    Raises:
        InvalidRequestError: the separator is missing; names `place`.
    """
    key, separator, value = line.partition(key_separator)
    if not separator:
        raise InvalidRequestError(
            "read record", str(place), f"the line has no key separator {key_separator.decode()!r}"
        )
    return NewRecord(key=key, value=value, headers=headers)


def read_json_line(line: bytes, *, headers: Headers, place: Place) -> NewRecord:
    """Read a record from a line of JSON.

    Raises:
        InvalidRequestError: the line is not such an object, has an unknown field, or no value;
            names `place`.
    """
    try:
        plain = _PLAIN.decode(line)
    except (ValueError, RecursionError):
        # The slow way reads what else a line may hold, or finds out what is wrong with the line.
        # msgspec's errors come here, too, since they are ValueErrors.
        return read_any_json_line(line, headers=headers, place=place)
    if plain.timestamp is not None and not _is_timestamp(plain.timestamp):
        return read_any_json_line(line, headers=headers, place=place)
    own = plain.headers or ()
    return NewRecord(
        key=None if plain.key is None else plain.key.encode(),
        value=None if plain.value is None else plain.value.encode(),
        headers=[*headers, *((name, _encoded(item)) for name, item in own)] if own else headers,
        timestamp=plain.timestamp,
        partition=plain.partition,
    )


def read_any_json_line(line: bytes, *, headers: Headers, place: Place) -> NewRecord:
    """Read any line of JSON; `read_json_line` must equal this, and is eight times as fast.

    Raises: InvalidRequestError.
    """
    try:
        value = json.loads(line)
        if not isinstance(value, dict):
            raise ValueError("it is not an object")  # noqa: TRY004 - a kind of bad input
        _check_fields(value)
        own = value.get("headers") or {}
        pairs = own.items() if isinstance(own, dict) else own
        return NewRecord(
            key=_to_bytes(value.get("key")),
            value=_to_bytes(value["value"]),
            headers=[*headers, *((_to_name(name), _to_bytes(item)) for name, item in pairs)],
            timestamp=_to_timestamp(value.get("timestamp")),
            partition=None if value.get("partition") is None else int(value["partition"]),
        )
    except (ValueError, TypeError, OverflowError, RecursionError, binascii.Error) as error:
        detail = f"the line is not a record in JSON: {error}"
        raise InvalidRequestError("read record", str(place), detail) from None


def text_lines(messages: Sequence[Message], *, key_separator: bytes | None) -> bytes:
    """Return records as lines of text, each with its end; a null key or value is empty."""
    if key_separator is None:
        lines = [message.value() or b"" for message in messages]
    else:
        lines = [
            (message.key() or b"") + key_separator + (message.value() or b"")
            for message in messages
        ]
    lines.append(b"")
    return b"\n".join(lines)


def json_lines(messages: Sequence[Message]) -> bytes:
    """Return records as lines of JSON, each with its end, equal to those of `json.dumps`."""
    text, lines, topics = _to_json, [], dict[str | None, str]()
    for message in messages:
        name = message.topic()
        topic = topics.get(name)
        if topic is None:
            topic = topics[name] = encode_basestring(name or "")
        headers: Any = message.headers()
        # Headers are a list of pairs, since a header's name may occur more than once.
        shown = (
            ", ".join(f"[{encode_basestring(key)}, {text(item)}]" for key, item in headers)
            if headers
            else ""
        )
        lines.append(
            f'{{"topic": {topic}, "partition": {message.partition()}, '
            f'"offset": {message.offset()}, "timestamp": {message.timestamp()[1]}, '
            f'"key": {text(message.key())}, "value": {text(message.value())}, '
            f'"headers": [{shown}]}}\n'
        )
    return "".join(lines).encode()


def _check_fields(value: dict[str, object]) -> None:
    for name in value:
        if name not in FIELDS:
            # The name is shortened: a line may have any length, and an error is one line of a
            # screen.
            near = difflib.get_close_matches(name[:40].lower(), FIELDS, n=1)
            meant = f", did you mean {near[0]!r}?" if near else ""
            raise ValueError(
                f"unknown field {name[:40]!r}{meant}; a record has: {', '.join(FIELDS)}"
            )
    if "value" not in value:
        raise ValueError('it has no value; a tombstone says "value": null')


def _to_timestamp(value: Any) -> int | None:
    if value is None:
        return None
    timestamp = int(value)
    if timestamp == 0:
        raise ValueError("its timestamp is 0, which can't be sent: leave it out, or give 1")
    if not _is_timestamp(timestamp):
        raise ValueError("its timestamp is not in ms since 1970, in 64 bits")
    return timestamp


def _is_timestamp(value: int) -> bool:
    return value != 0 and TIMESTAMP_MIN <= value <= TIMESTAMP_MAX


def _to_name(value: object) -> str:
    name = str(value)
    name.encode()  # half a surrogate pair has no UTF-8
    return name


def _to_bytes(value: object) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and value.keys() == {"base64"}:
        return base64.b64decode(value["base64"], validate=True)
    return json.dumps(value, ensure_ascii=False).encode()


def _encoded(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def _to_json(data: bytes | str | None) -> str:
    if data is None:
        return "null"
    if isinstance(data, str):  # the types allow text, but received data is always bytes
        return encode_basestring(data)
    try:
        return encode_basestring(data.decode())
    except UnicodeDecodeError:
        return f'{{"base64": "{base64.b64encode(data).decode()}"}}'
