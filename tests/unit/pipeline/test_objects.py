"""Objects by presigned URLs: what each of a store's answers leads to, and few requests."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import (
    ConflictError,
    CorruptDataError,
    InvalidRequestError,
    NotFoundError,
    RetryableError,
)
from penstock.pipeline import objects as objects_module
from penstock.pipeline.client import ClientOptions, PipelineClient, RefusedError
from penstock.pipeline.objects import ObjectAccess
from penstock.pipeline.presigned import put_headers
from support.http_stub import Agent
from support.simulated.clock import ManualClock


class Bucket:
    """A store of presigned URLs, each good while its token is; what it should answer instead."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.token = 1
        self.instead: list[int] = []
        """Statuses that come before any honest answer; 0: none comes, after the put."""
        self.conditional = True
        self.requests: list[tuple[str, str]] = []

    def __call__(self, _: int, handler: BaseHTTPRequestHandler, body: bytes) -> tuple[int, bytes]:
        url = urlsplit(handler.path)
        key = url.path.removeprefix("/bucket/")
        self.requests.append((handler.command, key))
        if self.instead:
            status = self.instead.pop(0)
            if not status and handler.command == "PUT":
                self.objects.setdefault(key, body)
            return status, b""
        if parse_qs(url.query)["token"] != [str(self.token)]:
            return 403, b"<Code>AccessDenied</Code>Request has expired"
        if handler.command == "PUT":
            if "if-none-match" in {name.lower() for name in handler.headers}:
                if not self.conditional:
                    return 501, b"<Code>NotImplemented</Code>"
                if key in self.objects:
                    return 412, b""
            self.objects[key] = body
            return 200, b""
        if key not in self.objects:
            return 404, b"<Code>NoSuchKey</Code>"
        data = self.objects[key]
        first, last = handler.headers["range"].removeprefix("bytes=").split("-")
        if int(first) >= len(data):
            return 416, b""
        part = data[int(first) : int(last) + 1]
        handler.send_response(206)
        handler.send_header("content-range", f"bytes {first}-{last}/{len(data)}")
        handler.send_header("content-length", str(len(part)))
        handler.end_headers()
        handler.wfile.write(part)
        return -1, b""


class FakeClient(PipelineClient):
    """The calls that `ObjectAccess` makes, and what passed through the agent."""

    def __init__(self, url: str, bucket: Bucket, *, objects: str = "auto") -> None:
        super().__init__(
            ClientOptions(urls=("127.0.0.1:1",), objects=objects, deadline_s=5.0),
            clock=ManualClock(),
        )
        self.url = url
        self.bucket = bucket
        self.loses_answers = False
        self.asked: list[tuple[str, list[str]]] = []
        self.through: list[str] = []

    def accesses(self, method: str, keys: Sequence[str], *, seconds: int = 900) -> list[str]:
        self.asked.append((method, list(keys)))
        return [f"{self.url}/bucket/{key}?token={self.bucket.token}" for key in keys]

    def get_object(self, key: str, start: int, end: int) -> bytes:
        self.through.append(key)
        if key not in self.bucket.objects:
            raise NotFoundError("read", key, "gone")
        if len(self.bucket.objects[key]) < end:
            raise CorruptDataError("read", key, "shorter")
        return self.bucket.objects[key][start:end]

    def put_object(self, key: str, parts: Sequence[Any]) -> None:
        self.through.append(key)
        if key in self.bucket.objects:
            raise RefusedError("put", key, "it is there", reason="object_exists")
        self.bucket.objects[key] = b"".join(parts)
        if self.loses_answers:
            # What the transport's second try meets.
            raise RefusedError("put", key, "it is there", reason="object_exists")


@contextmanager
def access(objects: str = "auto") -> Iterator[tuple[Bucket, FakeClient, ObjectAccess]]:
    bucket = Bucket()
    agent = Agent(bucket)
    client = FakeClient(agent.url, bucket, objects=objects)
    try:
        with ObjectAccess(client) as made:
            yield bucket, client, made
    finally:
        client.close()
        agent.close()


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects_module, "pause", lambda _: None)


def test_a_url_is_asked_for_once_and_again_before_it_is_over() -> None:
    with access() as (bucket, client, objects):
        bucket.objects["k"] = b"0123456789"
        assert objects.get_range("k", 2, 5) == b"234"
        assert objects.get_range("k", 0, 1) == b"0"
        assert client.asked == [("GET", ["k"])]
        assert isinstance(client.clock, ManualClock)
        client.clock.advance(800)
        assert objects.get_range("k", 0, 1) == b"0"
        assert client.asked == [("GET", ["k"])] * 2
        assert not client.through


def test_an_expired_url_is_replaced_by_another() -> None:
    with access() as (bucket, client, objects):
        bucket.objects["k"] = b"0123456789"
        objects.get_range("k", 2, 5)
        bucket.token = 2
        assert objects.get_range("k", 2, 5) == b"234"
        assert client.asked == [("GET", ["k"])] * 2
        assert not client.through


def test_a_store_that_says_forbidden_twice_leaves_it_to_the_agent() -> None:
    with access() as (bucket, client, objects):
        bucket.objects["k"] = b"0123456789"
        bucket.instead = [403, 403]
        assert objects.get_range("k", 2, 5) == b"234"
        assert client.through == ["k"]
        bucket.instead = [403, 403]
        with pytest.raises(NotFoundError):
            objects.get_range("other", 2, 5)


def test_errors_of_the_store_are_what_they_mean() -> None:
    with access() as (bucket, client, objects):
        bucket.objects["k"] = b"0123456789"
        with pytest.raises(NotFoundError):
            objects.get_range("gone", 0, 5)
        with pytest.raises(CorruptDataError):
            objects.get_range("k", 5, 11)
        with pytest.raises(CorruptDataError):
            objects.get_range("k", 10, 11)
        bucket.instead = [503, 500, 0, 429]
        assert objects.get_range("k", 0, 10) == b"0123456789"
        assert not client.through


def test_a_store_that_stays_away_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    with access() as (bucket, client, objects):
        assert isinstance(client.clock, ManualClock)
        monkeypatch.setattr(objects_module, "pause", client.clock.advance)
        bucket.instead = [503] * 1000
        with pytest.raises(RetryableError) as caught:
            objects.get_range("k", 0, 5)
        assert "token" not in str(caught.value)
        assert len(bucket.requests) < 50


def test_an_object_is_put_once() -> None:
    with access() as (bucket, client, objects):
        objects.put("k", [b"abc", memoryview(b"def")])
        assert bucket.objects["k"] == b"abcdef"
        with pytest.raises(ConflictError):
            objects.put("k", [b"xyzxyz"])
        assert bucket.objects["k"] == b"abcdef"
        assert not client.through


def test_a_put_whose_answer_was_lost_is_found_to_have_succeeded() -> None:
    with access() as (bucket, _, objects):
        bucket.instead = [0]
        objects.put("k", [b"abcdef"])
        assert bucket.objects["k"] == b"abcdef"
        # What lies there isn't what was put.
        bucket.objects["other"] = b"abc"
        bucket.instead = [503]
        with pytest.raises(ConflictError):
            objects.put("other", [b"abcdef"])


def test_a_put_through_an_agent_whose_answer_was_lost_has_succeeded() -> None:
    client = FakeClient("", Bucket(), objects="agent")
    with ObjectAccess(client) as objects:
        client.loses_answers = True
        objects.put("k", [b"abc", b"def"])
        assert client.bucket.objects["k"] == b"abcdef"
        for other in (b"abcdeX", b"abcdefg"):
            with pytest.raises(RefusedError):
                objects.put("k", [other])
        assert client.bucket.objects["k"] == b"abcdef"


def test_puts_go_on_with_new_urls_and_without_conditions_where_there_are_none() -> None:
    with access() as (bucket, client, objects):
        bucket.instead = [403]
        objects.put("a", [b"1"])
        assert client.asked == [("PUT", ["a"])] * 2
        bucket.instead = [403, 403]
        objects.put("b", [b"2"])
        assert client.through == ["b"]
        bucket.conditional = False
        objects.put("c", [b"3"])
        objects.put("d", [b"4"])
        assert bucket.objects == {"a": b"1", "b": b"2", "c": b"3", "d": b"4"}
        assert client.through == ["b"]


def test_an_object_that_no_store_takes_at_once_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects_module, "PUT_BYTES_MAX", 5)
    with access() as (bucket, _, objects):
        with pytest.raises(InvalidRequestError):
            objects.put("k", [b"abc", b"def"])
        assert not bucket.requests


def test_objects_of_another_cluster_pass_through_the_agent() -> None:
    with access() as (bucket, client, objects):
        bucket.objects["origins/d/k"] = b"0123456789"
        items = [
            ("origins/d/k", 2, 5, "s3://another/cluster"),
            ("origins/d/k", 5, 6, "s3://another/cluster"),
        ]
        assert objects.get_views(items) == [b"234", b"5"]
        assert client.through == ["origins/d/k"]
        assert not client.asked


@given(
    st.lists(
        st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 999), st.integers(0, 300)),
        max_size=30,
    )
)
def test_many_ranges_are_read_by_few_requests(wanted: list[tuple[str, int, int]]) -> None:
    store = {key: bytes((number * 7 + ord(key)) % 251 for number in range(1300)) for key in "ab"}
    bucket = Bucket()
    bucket.objects = store
    client = FakeClient("", bucket, objects="agent")
    items = [(key, start, start + length) for key, start, length in wanted]
    with ObjectAccess(client) as objects:
        assert objects.get_views(items) == [store[key][start:end] for key, start, end in items]
    # All are near one another.
    assert len(client.through) <= len({key for key, start, end in items if start < end})


def test_ranges_far_apart_are_not_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects_module, "_GAP_BYTES", 10)
    bucket = Bucket()
    bucket.objects["k"] = bytes(range(200))
    client = FakeClient("", bucket, objects="agent")
    with ObjectAccess(client) as objects:
        assert objects.get_views([("k", 0, 5), ("k", 10, 20), ("k", 100, 101)]) == [
            bytes(range(5)), bytes(range(10, 20)), bytes([100]),
        ]  # fmt: skip
        assert len(client.through) == 2
    adjacent = [("k", at, at + 10) for at in range(0, 100, 10)]
    assert len(objects_module._stretches(adjacent)) == 1
    assert len(objects_module._stretches(adjacent, bytes_max=40)) == 3


def test_urls_of_many_objects_are_asked_for_together() -> None:
    with access() as (bucket, client, objects):
        for number in range(20):
            bucket.objects[f"k{number:02}"] = bytes([number]) * 10
        items = [(f"k{number:02}", 0, 10) for number in range(20)]
        assert objects.get_views(items) == [bytes([number]) * 10 for number in range(20)]
        assert client.asked == [("GET", [key for key, *_ in items])]
        assert objects.get_views([]) == []


def test_what_is_pickled_holds_no_url() -> None:
    with access() as (bucket, client, objects):
        bucket.objects["k"] = b"0123456789"
        objects.get_range("k", 2, 5)
        pickled = pickle.dumps(ObjectAccess(PipelineClient(client.options)))
        assert b"token" not in pickled
        again = pickle.loads(pickled)
        assert again._client.options == client.options
        assert not again._urls


def test_what_each_store_wants_with_a_put() -> None:
    s3 = "https://b.s3.amazonaws.com/k?X-Amz-Signature=x"
    azure = "https://a.blob.core.windows.net/c/k?sv=1&sig=x"
    google = "https://storage.googleapis.com/b/k?X-Goog-Signature=x"
    assert put_headers(s3) == {"if-none-match": "*"}
    assert put_headers(azure) == {"x-ms-blob-type": "BlockBlob", "if-none-match": "*"}
    assert put_headers(google) == {}
    assert put_headers(s3, if_absent=False) == {}
