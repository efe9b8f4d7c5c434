"""Request and response headers against kio's."""

import importlib
import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.serial import entity_reader, entity_writer

from penstock.kafka.errors import MalformedRequestError
from penstock.kafka.registry import BY_MODULE
from penstock.kafka.wire import header


def kio_header(version: int, client_id: str | None) -> bytes:
    kind: Any = importlib.import_module(f"kio.schema.request_header.v{version}.header")
    buffer = io.BytesIO()
    entity = kind.RequestHeader(
        request_api_key=3, request_api_version=12, correlation_id=-5, client_id=client_id
    )
    entity_writer(kind.RequestHeader)(buffer, entity)
    return buffer.getvalue()


@given(client_id=st.one_of(st.none(), st.text(max_size=40)), version=st.sampled_from([1, 2]))
def test_a_request_header_is_read_as_kio_wrote_it(client_id: str | None, version: int) -> None:
    frame = memoryview(kio_header(version, client_id) + b"body")
    assert header.parse_fixed(frame) == (3, 12, -5)
    assert header.parse_rest(frame, flexible=version == 2) == (client_id, len(frame) - 4)


def test_unknown_tagged_fields_are_passed_over() -> None:
    plain = kio_header(2, "x")
    frame = memoryview(plain[:-1] + b"\x02\x00\x03abc\x81\x01\x00" + b"body")
    assert header.parse_rest(frame, flexible=True) == ("x", len(frame) - 4)


@given(st.binary(max_size=40), st.booleans())
def test_hostile_headers_give_only_our_error(data: bytes, flexible: bool) -> None:
    frame = memoryview(data)
    try:
        header.parse_fixed(frame)
        _, start = header.parse_rest(frame, flexible=flexible)
        assert 10 <= start <= len(frame)
    except MalformedRequestError:
        pass


@pytest.mark.parametrize(("api", "version"), [("metadata", 8), ("metadata", 9)])
def test_a_response_header_is_what_kio_reads(api: str, version: int) -> None:
    data = header.response_header(BY_MODULE[api], version, 77, 100)
    kind: Any = importlib.import_module(
        f"kio.schema.response_header.v{1 if version == 9 else 0}.header"
    )
    entity, length = entity_reader(kind.ResponseHeader)(data, 4)
    assert entity.correlation_id == 77
    assert length == len(data) - 4
    assert int.from_bytes(data[:4], "big") == len(data) - 4 + 100


def test_api_versions_answers_without_tags_so_that_any_client_reads_it() -> None:
    assert len(header.response_header(BY_MODULE["api_versions"], 4, 1, 0)) == 8
