"""Bytes that are no text, and values nested without end, are damage or a bad request: no bug."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from starlette.requests import Request
from starlette.responses import Response

from penstock.app.http.agents_api import answered
from penstock.groups.durable import DurableGroup, decode_state, encode_state
from penstock.model.errors import CorruptDataError, InvalidRequestError, PenstockError
from penstock.peers.codec import BlockRange, decode_blocks, encode_blocks
from penstock.recovery.copied_objects import _decode as decode_note
from penstock.replica.beginning import Beginning, decode_beginning, encode_beginning
from penstock.state.commands import CreateTopic
from penstock.state.entries import Entry, decode_entry, encode_entry

NO_TEXT = b"\xff\xfe\xfd"
DEEP = b"[" * 100_000
SOURCE = Path(__file__).parents[3] / "src" / "penstock"


def entry() -> bytes:
    command = CreateTopic(name="abc", topic_id=bytes(16), partitions=1)
    return encode_entry(Entry(agent=1, epoch=1, n=1, stamp_ms=1, commands=[command]))


@pytest.mark.parametrize(
    ("right", "decode", "error"),
    [
        (entry(), lambda body: decode_entry(body, position=1), CorruptDataError),
        (
            encode_state(DurableGroup("abc", "leader", [])),
            lambda body: decode_state(body, group_id="g"),
            CorruptDataError,
        ),
        (
            encode_beginning(Beginning(cluster_id="abc", position=1, digest=bytes(32))),
            lambda body: decode_beginning(body, position=1),
            CorruptDataError,
        ),
        (
            encode_blocks([BlockRange("abc", 0, 8)]),
            lambda body: decode_blocks(body, block_bytes=16),
            InvalidRequestError,
        ),
    ],
    ids=["entry", "group", "beginning", "blocks"],
)
def test_text_that_is_none_is_an_error_of_its_kind(
    right: bytes, decode: Callable[[bytes], object], error: type[PenstockError]
) -> None:
    decode(right)
    assert right.count(b"abc") == 1
    with pytest.raises(error):
        decode(right.replace(b"abc", NO_TEXT))


def test_a_note_of_a_restore_that_is_no_text_is_none() -> None:
    assert decode_note(b'{"parent":"' + NO_TEXT + b'"}') is None


@pytest.mark.parametrize(
    "body", [b'{"destination":"' + NO_TEXT + b'"}', b'{"destination":"d","x":' + DEEP]
)
async def test_an_http_call_of_such_bytes_is_refused(body: bytes) -> None:
    class Wanted(msgspec.Struct):
        destination: str

    async def handle(_: Request) -> Response:
        msgspec.json.decode(body, type=Wanted)
        raise AssertionError

    request = Request({"type": "http", "method": "POST", "path": "/", "headers": []})
    assert (await answered(handle)(request)).status_code == 400  # type: ignore[arg-type]


def test_every_module_catches_all_that_msgspec_raises() -> None:
    naming = [path.name for path in SOURCE.rglob("*.py") if "MsgspecError" in path.read_text()]
    assert naming == ["malformed.py"]
