"""Request and response headers, by struct: they are read and written for every request. Pure.

| request header | |
| --- | --- |
| int16 api key, int16 api version, int32 correlation id | always |
| nullable string client id (int16 length) | always, also in flexible versions |
| tagged fields | flexible versions (header version 2) |

The response's is int32 size, int32 correlation id, and empty tagged fields in flexible versions,
save ApiVersions, whose answer must be readable before the client knows any version (KIP-511).
Source: RequestHeader.json, ResponseHeader.json; KIP-482.
"""

import struct
from typing import Final

from penstock.kafka.errors import MalformedRequestError
from penstock.kafka.registry import API_VERSIONS_KEY, Api
from penstock.kafka.wire.primitives import MALFORMED, skip_tags

FIXED_BYTES: Final = 8
_unpack_fixed: Final = struct.Struct(">hhi").unpack_from
_unpack_length: Final = struct.Struct(">h").unpack_from
_pack_size: Final = struct.Struct(">i").pack
_pack_response: Final = struct.Struct(">ii").pack
_CORRELATION_BYTES: Final = 4


def parse_fixed(frame: memoryview) -> tuple[int, int, int]:
    """API key, API version and correlation id.

    Raises:
        MalformedRequestError: the frame is shorter than that.
    """
    if len(frame) < FIXED_BYTES:
        raise MalformedRequestError("decode", "request header", f"{len(frame)} bytes")
    key, version, correlation_id = _unpack_fixed(frame)
    return key, version, correlation_id


def parse_rest(frame: memoryview, *, flexible: bool) -> tuple[str | None, int]:
    """Client id, and where the body starts.

    Raises:
        MalformedRequestError: the header's lengths reach beyond the frame.
    """
    try:
        (length,) = _unpack_length(frame, FIXED_BYTES)
        position = FIXED_BYTES + 2
        client_id: str | None = None
        if length >= 0:
            end = position + length
            if end > len(frame):
                raise MalformedRequestError("decode", "request header", f"client id of {length}")
            client_id = str(frame[position:end], "utf-8")
            position = end
        elif length != -1:
            raise MalformedRequestError("decode", "request header", f"client id of {length}")
        if flexible:
            # Nearly always one zero byte: no tagged fields.
            if frame[position] == 0:
                position += 1
            else:
                position = skip_tags(frame, position)
    except MALFORMED as error:
        raise MalformedRequestError("decode", "request header", str(error)) from error
    return client_id, position


def response_header(api: Api, version: int, correlation_id: int, body_bytes: int) -> bytes:
    """Size and header of a response.

    Args:
        body_bytes: length of the response's body.
    """
    if api.key < 0:
        return _pack_size(body_bytes)
    if version >= api.flexible_from and api.key != API_VERSIONS_KEY:
        return _pack_response(body_bytes + _CORRELATION_BYTES + 1, correlation_id) + b"\0"
    return _pack_response(body_bytes + _CORRELATION_BYTES, correlation_id)
