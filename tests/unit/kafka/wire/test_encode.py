"""Our writer of entities against kio's, for every API and version; and in steps."""

import dataclasses
import io
import typing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from kio.serial import entity_writer as kio_writer

from penstock.kafka.errors import ErrorCode
from penstock.kafka.registry import BY_MODULE
from penstock.kafka.wire import schema
from penstock.kafka.wire.decode import STEP_ITEMS, decode_in_steps, without_none
from penstock.kafka.wire.encode import (
    EncodedParts,
    encode_in_steps,
    entity_writer,
    length_in_steps,
    pieces_of,
)
from penstock.kafka.wire.schema import build, response_types
from penstock.model.steps import at_once
from support.slow import slow_unless
from unit.kafka.wire.test_decode import EVERY_VERSION, SAMPLES, is_newest, sample

SAMPLES.update(
    {
        "error_code": ErrorCode.NOT_COORDINATOR,
        "datetime_i64": datetime(2026, 11, 23, tzinfo=UTC),
        "float64": 0.5,
        "uint32": 1 << 31,
    }
)


def written_by_kio(entity: Any) -> bytes:
    buffer = io.BytesIO()
    kio_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


def types_of(api: str, version: int) -> list[Any]:
    return [schema._entity_type(api, version, kind) for kind in ("Request", "Response")]


@pytest.mark.parametrize("nulls", [False, True])
@pytest.mark.parametrize(("api", "version"), slow_unless(is_newest, EVERY_VERSION))
def test_an_entity_is_written_as_kio_writes_it(api: str, version: int, nulls: bool) -> None:
    for kind in types_of(api, version):
        entity = sample(kind, nulls=nulls)
        assert schema.encode_response(entity) == written_by_kio(entity)


@pytest.mark.slow
def test_tagged_fields_at_their_defaults_are_left_out() -> None:
    seen = 0
    for api, version in EVERY_VERSION:
        for kind in types_of(api, version):
            tagged = [f for f in dataclasses.fields(kind) if f.metadata.get("tag") is not None]
            defaults = {f.name: f.default for f in tagged if f.default is not dataclasses.MISSING}
            if defaults:
                entity = dataclasses.replace(sample(kind, nulls=False), **defaults)
                assert schema.encode_response(entity) == written_by_kio(entity)
                seen += 1
    assert seen


def shape_of(kind: Any) -> Any:
    """All that our readers and writers are made from: of versions that have it alike, one is as
    good as another."""
    if not dataclasses.is_dataclass(kind):
        return kind
    shape = [kind.__flexible__]  # type: ignore[attr-defined]
    for field in dataclasses.fields(kind):
        inner, nullable = without_none(field.type)
        is_array = typing.get_origin(inner) is tuple
        item = without_none(typing.get_args(inner)[0])[0] if is_array else inner
        metadata = tuple(sorted(field.metadata.items()))
        shape += [field.name, nullable, is_array, repr(field.default), metadata, shape_of(item)]
    return tuple(shape)


NEWEST = [(api, kind) for api in dict(EVERY_VERSION) for kind in ("Request", "Response")]


def grown(entity: Any, count: int) -> Any:
    """The entity with every array made longer."""
    values = {}
    for field in dataclasses.fields(entity):
        value = getattr(entity, field.name)
        if isinstance(value, tuple) and value:
            one = value[0]
            values[field.name] = (grown(one, 3) if dataclasses.is_dataclass(one) else one,) * count
    return dataclasses.replace(entity, **typing.cast("Any", values))


@pytest.mark.parametrize(("api", "of"), NEWEST)
def test_long_entities_are_written_and_read_in_steps(api: str, of: str) -> None:
    check_steps(schema._entity_type(api, BY_MODULE[api].versions_max, of))


@pytest.mark.slow
@pytest.mark.parametrize(("api", "of"), NEWEST)
def test_long_entities_of_older_versions_are_written_and_read_in_steps(api: str, of: str) -> None:
    entry = BY_MODULE[api]
    newest = schema._entity_type(api, entry.versions_max, of)
    checked = {shape_of(newest)}
    # Types are made when a test asks for them: each process that collects would make them all.
    for version in reversed(range(entry.versions_min, entry.versions_max)):
        kind: Any = schema._entity_type(api, version, of)
        if shape_of(kind) not in checked:
            checked.add(shape_of(kind))
            check_steps(kind)


def check_steps(kind: Any) -> None:
    count = 2 * STEP_ITEMS + 1
    entity = grown(sample(kind, nulls=False), count)
    body = written_by_kio(entity)
    work = encode_in_steps(entity)
    steps = []
    try:
        while True:
            steps.append(next(work))
    except StopIteration as end:
        assert bytes(end.value) == body
    assert at_once(length_in_steps(entity)) == len(body)
    pieces = [piece for piece, _ in pieces_of(entity, piece_bytes=1000, piece_items=STEP_ITEMS)]
    assert b"".join(pieces) == body
    assert len(pieces) > 1 or len(body) < 1000 or entity == sample(kind, nulls=False)
    if len(body) <= 4096 or entity == sample(kind, nulls=False):
        return
    assert sum(steps) > count
    assert max(steps) <= STEP_ITEMS
    reading = decode_in_steps(kind, body)
    steps = []
    try:
        while True:
            steps.append(next(reading))
    except StopIteration as end:
        assert end.value == entity
    assert sum(steps) >= count
    assert max(steps) <= STEP_ITEMS


def test_an_array_that_is_encoded_in_parts_is_written_in_pieces() -> None:
    types = response_types("offset_fetch", 5)
    partitions = tuple(
        build(
            types.OffsetFetchResponsePartition,
            partition_index=number,
            committed_offset=1,
            committed_leader_epoch=1,
            metadata="m" * 1000,
            error_code=0,
        )
        for number in range(500)
    )

    def answer(some: Any) -> Any:
        topic = build(types.OffsetFetchResponseTopic, name="t", partitions=some)
        return build(types.OffsetFetchResponse, topics=(topic,), error_code=0)

    write = entity_writer(types.OffsetFetchResponsePartition)
    parts = [(500).to_bytes(4, "big")]
    for start in range(0, 500, 20):
        part = bytearray()
        for partition in partitions[start : start + 20]:
            write(part, partition)
        parts.append(bytes(part))
    in_parts = answer(EncodedParts(parts))
    whole = bytes(at_once(encode_in_steps(answer(partitions))))
    assert bytes(at_once(encode_in_steps(in_parts))) == whole
    assert at_once(length_in_steps(in_parts)) == len(whole)
    pieces = [piece for piece, _ in pieces_of(in_parts, piece_bytes=64 << 10, piece_items=250)]
    assert b"".join(pieces) == whole
    assert max(map(len, pieces)) < 100_000


def test_a_duration_is_written_in_milliseconds() -> None:
    types = schema.response_types("heartbeat", 4)
    entity = types.HeartbeatResponse(
        throttle_time=timedelta(milliseconds=1500), error_code=ErrorCode.NONE
    )
    assert schema.encode_response(entity) == b"\0\0\x05\xdc\0\0\0"
