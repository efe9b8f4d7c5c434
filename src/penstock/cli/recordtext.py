"""Records as lines of text: what `produce` reads and `consume` prints. Pure.

Format `text`: the value, after the key and a separator where one is asked for.
Format `json`: one object per line with key, value, headers, timestamp (ms since the epoch),
partition and, when printed, topic and offset (taken and ignored when read). Keys and values are
UTF-8 text, null, or {"base64": "..."} where bytes are no text; a JSON value that is no text is
produced as its JSON. A tombstone says `"value": null`: a line without a value, or with a field
that is not known, is refused, since a misspelt name would otherwise delete its key's record.
"""

import base64
import binascii
import difflib
import json
from typing import Any, Final

from penstock.cli.client.fetching import FetchedRecord
from penstock.cli.client.producing import NewRecord
from penstock.model.errors import InvalidRequestError

Headers = tuple[tuple[str, bytes | None], ...]

FIELDS: Final = ("key", "value", "headers", "timestamp", "partition", "topic", "offset")
"""What a line of JSON may have."""
TIMESTAMP_MIN: Final = -1
"""A record without a timestamp."""
TIMESTAMP_MAX: Final = (1 << 63) - 2
"""Of which the difference to the least still fits 64 bits, as a batch holds them."""


def read_text_line(
    line: bytes, *, key_separator: bytes | None, headers: Headers, now_ms: int, place: str
) -> NewRecord:
    """A record of a line of text.

    Args:
        line: without its end.
        key_separator: what stands between key and value; None: there are no keys.
        headers: for each record.
        place: the line's place, for errors.

    Raises:
        InvalidRequestError: the separator is missing.
    """
    key, value = None, line
    if key_separator is not None:
        key, separator, value = line.partition(key_separator)
        if not separator:
            raise InvalidRequestError(
                "read record", place, f"no key separator {key_separator.decode()!r} in the line"
            )
    return NewRecord(key=key, value=value, headers=headers, timestamp=now_ms)


def read_json_line(line: bytes, *, headers: Headers, now_ms: int, place: str) -> NewRecord:
    """A record of a line of JSON.

    Raises:
        InvalidRequestError: the line is not such an object, has a field of another name, or no
            value; carries `place`.
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
            headers=headers + tuple((_to_name(name), _to_bytes(item)) for name, item in pairs),
            timestamp=_to_timestamp(value.get("timestamp"), now_ms),
            partition=None if value.get("partition") is None else int(value["partition"]),
        )
    except (ValueError, TypeError, OverflowError, RecursionError, binascii.Error) as error:
        raise InvalidRequestError("read record", place, f"no record in JSON: {error}") from None


def text_line(record: FetchedRecord, *, key_separator: bytes | None) -> bytes:
    """A record as a line of text, with its end; a null key or value is empty."""
    value = record.value or b""
    if key_separator is None:
        return value + b"\n"
    return (record.key or b"") + key_separator + value + b"\n"


def json_line(record: FetchedRecord) -> bytes:
    """A record as a line of JSON, with its end."""
    value = {
        "topic": record.partition.topic,
        "partition": record.partition.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": _to_json(record.key),
        "value": _to_json(record.value),
        # A list of pairs, since a header's name may occur more than once.
        "headers": [[name, _to_json(item)] for name, item in record.headers],
    }
    return json.dumps(value, ensure_ascii=False).encode() + b"\n"


def _check_fields(value: dict[str, Any]) -> None:
    for name in value:
        if name not in FIELDS:
            # Shortened, since a line may be of any length, and an error is one line of a screen.
            near = difflib.get_close_matches(name[:40].lower(), FIELDS, n=1)
            meant = f", did you mean {near[0]!r}?" if near else ""
            raise ValueError(
                f"unknown field {name[:40]!r}{meant}; a record has: {', '.join(FIELDS)}"
            )
    if "value" not in value:
        raise ValueError('it has no value; a tombstone says "value": null')


def _to_timestamp(value: Any, now_ms: int) -> int:
    if value is None:
        return now_ms
    timestamp = int(value)
    if not TIMESTAMP_MIN <= timestamp <= TIMESTAMP_MAX:
        raise ValueError("its timestamp is not in ms since 1970, in 64 bits")
    return timestamp


def _to_name(value: Any) -> str:
    name = str(value)
    name.encode()  # half a surrogate pair has no UTF-8
    return name


def _to_bytes(value: Any) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and value.keys() == {"base64"}:
        return base64.b64decode(value["base64"], validate=True)
    return json.dumps(value, ensure_ascii=False).encode()


def _to_json(data: bytes | None) -> Any:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}
