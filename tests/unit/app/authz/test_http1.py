"""HTTP/1.1 requests: any chunking gives the same ones, and bad ones the exact error."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.app.authz.http1 import (
    BODY_BYTES_MAX,
    HEAD_BYTES_MAX,
    BadRequestError,
    RequestReader,
    response,
)

POST = (
    b"POST /api/authorize? HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    b'Authorization:  Bearer k \r\nContent-Length: 7\r\n\r\n{"a":1}'
)
GET = b"GET /api/facts?predicate=a%20b HTTP/1.1\r\nhost: x\r\n\r\n"
OLD = b"GET /healthz HTTP/1.0\r\n\r\n"
CLOSES = b"GET / HTTP/1.1\r\nconnection: close\r\n\r\n"


def read_all(reader):
    found = []
    while (request := reader.next()) is not None:
        found.append(request)
    return found


@given(st.lists(st.sampled_from([POST, GET, OLD, CLOSES]), max_size=5), st.data())
def test_any_chunking_gives_the_same_requests(parts, data):
    whole, pieces = RequestReader(), RequestReader()
    stream = b"".join(parts)
    whole.feed(stream)
    expected = read_all(whole)
    found = []
    at = 0
    while at < len(stream):
        end = data.draw(st.integers(at + 1, len(stream)))
        pieces.feed(stream[at:end])
        found += read_all(pieces)
        at = end
    assert found == expected
    assert len(found) == len(parts)


def test_a_request_is_read():
    reader = RequestReader()
    reader.feed(POST + GET)
    first, second = read_all(reader)
    assert (first.method, first.path, first.query) == ("POST", "/api/authorize", "")
    assert first.body == b'{"a":1}'
    assert first.headers["authorization"] == "Bearer k"
    assert first.keeps_alive
    assert (second.path, second.query) == ("/api/facts", "predicate=a%20b")


@pytest.mark.parametrize(("request_", "keeps"), [(POST, True), (OLD, False), (CLOSES, False)])
def test_connections_are_kept_as_the_client_says(request_, keeps):
    reader = RequestReader()
    reader.feed(request_)
    (found,) = read_all(reader)
    assert found.keeps_alive == keeps


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET  / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/2.0\r\n\r\n", 505),
        (b"BREW / HTTP/1.1\r\n\r\n", 501),
        (b"GET http://x/ HTTP/1.1\r\n\r\n", 400),
        (b"GET /\x01 HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n: x\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\na b: c\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\na : c\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\na: b\nc: d\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n folded: b\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 1_0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: \xb2\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 1\r\ncontent-length: 1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 411),
        (b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (BODY_BYTES_MAX + 1), 413),
        (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 101 + b"\r\n", 431),
        (b"GET /" + b"a" * HEAD_BYTES_MAX, 431),
        (b"GET / HTTP/1.1\r\na: " + b"a" * HEAD_BYTES_MAX + b"\r\n\r\n", 431),
    ],
)
def test_what_is_not_served_is_refused(head, status):
    reader = RequestReader()
    reader.feed(head)
    with pytest.raises(BadRequestError) as caught:
        reader.next()
    assert caught.value.status == status


@given(st.binary(max_size=300))
def test_any_bytes_give_requests_or_our_error(data):
    reader = RequestReader()
    reader.feed(data)
    try:
        read_all(reader)
    except BadRequestError as error:
        assert 400 <= error.status < 600


def test_a_client_that_waits_for_leave_gets_it_once_the_head_is_there():
    reader = RequestReader()
    reader.feed(b"POST / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
    assert reader.next() is None
    assert reader.wants_continue
    reader.feed(b"{}")
    assert not reader.wants_continue
    assert reader.next().body == b"{}"


def test_a_response_has_its_length_and_says_whether_the_connection_ends():
    found = response(200, b"{}", content_type="application/json", headers=(("A", "b"),))
    assert found == (
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\nA: b\r\n\r\n{}"
    )
    last = response(413, b"{}", content_type="a/b", keeps_alive=False, without_body=True)
    assert last.endswith(b"Connection: close\r\n\r\n")
