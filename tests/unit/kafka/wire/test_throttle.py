"""The time to wait is written where kio finds it, for each API and version that has the field."""

import dataclasses
from datetime import timedelta

import pytest

from penstock.kafka.registry import APIS, BY_MODULE, Api
from penstock.kafka.replies import PiecedReply
from penstock.kafka.wire import schema
from penstock.kafka.wire.throttle import place_of, throttled
from unit.kafka.wire.test_decode import EVERY_VERSION, sample

WAIT_S = 1.234


def entities(api: Api, version: int):
    """An answer without throttling, and the same with it."""
    kind = schema._entity_type(api.module, version, "Response")
    found = sample(kind, nulls=False)
    names = {field.name for field in dataclasses.fields(kind)}
    if "throttle_time" not in names:
        return found, None
    return tuple(
        dataclasses.replace(found, throttle_time=timedelta(seconds=time_s))
        for time_s in (0, WAIT_S)
    )


@pytest.mark.parametrize(("module", "version"), EVERY_VERSION)
def test_the_field_is_where_it_is_written(module: str, version: int) -> None:
    api = BY_MODULE[module]
    before, after = entities(api, version)
    encoded = schema.encode_response(before)
    (written,) = throttled(api, version, [encoded], WAIT_S)
    if place_of(api, version) is None:
        assert after is None or api.name == "ApiVersions"
        assert written is encoded
        return
    if api.name == "Produce" and version >= 10:
        # kio writes the tagged field of nodes, which our answers don't have.
        after = dataclasses.replace(after, node_endpoints=())
        before = dataclasses.replace(before, node_endpoints=())
        (written,) = throttled(api, version, [schema.encode_response(before)], WAIT_S)
    assert bytes(written) == schema.encode_response(after)
    # In parts: the field is in the first of them, or the last.
    encoded = schema.encode_response(before)
    half = len(encoded) // 2
    if half >= 6:
        parts = throttled(api, version, [encoded[:half], encoded[half:]], WAIT_S)
        assert b"".join(map(bytes, parts)) == bytes(written)


def test_a_long_answer_has_it_in_its_first_piece() -> None:
    api = APIS[3]
    before, after = entities(api, 13)
    encoded = schema.encode_response(before)
    pieces = iter([(encoded[:100], 1), (encoded[100:], 2)])
    reply = PiecedReply(pieces, byte_count=len(encoded), held_bytes=7)
    found = throttled(api, 13, reply, WAIT_S)
    assert isinstance(found, PiecedReply)
    assert (found.byte_count, found.held_bytes) == (len(encoded), 7)
    assert b"".join(bytes(part) for part, _ in found.pieces) == schema.encode_response(after)


def test_an_answer_that_others_get_too_is_not_written_to() -> None:
    api = APIS[1]
    shared = bytearray(schema.encode_response(entities(api, 12)[0]))
    before = bytes(shared)
    throttled(api, 12, [shared], 1e9)
    assert bytes(shared) == before
