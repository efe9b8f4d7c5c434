"""Stores against a real S3 server over HTTP, also with faults between."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from penstock.model.errors import (
    ConflictError,
    InvalidRequestError,
    OverloadedError,
    RetryableError,
)
from penstock.objects import Retrying, StoreOptions, Timed, open_reliable_store, open_store
from penstock.ports.objects import ObjectStore
from penstock.system.clock import SystemClock
from penstock.testing.conformance import ObjectStoreSuite
from support.s3 import S3Server
from support.s3_proxy import Rule, S3Proxy, S3ProxyProcess, s3_delays
from support.simulated.randomness import SeededRandom


class Meter:
    """Keeps what was measured."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, int]] = []

    def measured(self, *, operation: str, outcome: str, seconds: float, bytes_count: int) -> None:
        self.calls.append((operation, outcome, bytes_count))

    def outcomes(self, operation: str) -> list[str]:
        return [outcome for name, outcome, _ in self.calls if name == operation]


class TestS3(ObjectStoreSuite):
    """The contract, on a bucket's prefix."""

    @pytest.fixture(autouse=True)
    def _server(self, s3: S3Server) -> None:
        self.server = s3

    def make_store(self, folder: Path) -> ObjectStore:
        return open_store(f"s3://{self.server.make_bucket()}/some/prefix")


OF_WHOLE_OBJECTS = ["put", "get", "head", "list", "delete"]
OF_PIECES = ["multipart_start", "part", "multipart_end"]
"""A put of seven requests begins anew when one of them fails: of these few do, and none hangs, for
which a large object allows a minute."""
NOT_DONE_OR_NOT_SAID = ("slow_down", "error", "reset", "lost_reply")


class TestS3ThroughAFaultyNetwork(ObjectStoreSuite):
    """A third of all requests goes wrong, each in one of six ways, and nobody notices."""

    seconds_max = 300.0

    @pytest.fixture(autouse=True)
    def _proxy(
        self, s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[None]:
        self.server = s3
        with S3ProxyProcess(upstream=s3.endpoint, log=tmp_path / "proxy.log", seed=7) as proxy:
            monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
            proxy.set_rules(
                *(
                    Rule(fault=fault, operations=OF_WHOLE_OBJECTS, percent=6)
                    for fault in NOT_DONE_OR_NOT_SAID
                ),
                Rule(fault="cut_body", operations=["get", "list"], percent=10),
                Rule(fault="hang", operations=OF_WHOLE_OBJECTS, percent=2),
                *(
                    Rule(fault=fault, operations=OF_PIECES, percent=2)
                    for fault in NOT_DONE_OR_NOT_SAID
                ),
            )
            yield

    def make_store(self, folder: Path) -> ObjectStore:
        store = open_store(f"s3://{self.server.make_bucket()}/some/prefix")
        # The same pieces as `open_reliable_store`, with shorter waits.
        return Retrying(
            Timed(store, seconds=3),
            clock=SystemClock(),
            random=SeededRandom(1),
            deadline_s=self.seconds_max,
            first_delay_s=0.01,
            delay_max_s=0.2,
            slow_down_delay_s=0.05,
        )


@asynccontextmanager
async def _between(server: S3Server, *rules: Rule) -> AsyncIterator[tuple[S3Proxy, str]]:
    """A proxy on this loop, and the URL of an empty bucket's prefix behind it."""
    proxy = S3Proxy(server.endpoint, seed=1)
    proxy.set_rules(*rules)
    await proxy.start()
    try:
        yield proxy, f"s3://{server.make_bucket()}/p"
    finally:
        await proxy.close()


def _open(
    proxy: S3Proxy,
    url: str,
    meter: Meter,
    *,
    request_timeout_s: float = 30.0,
    hedges: bool = False,
) -> ObjectStore:
    return open_reliable_store(
        url,
        clock=SystemClock(),
        random=SeededRandom(2),
        meter=meter,
        options=StoreOptions(endpoint=proxy.endpoint, request_timeout_s=request_timeout_s),
        deadline_s=60,
        hedges=hedges,
    )


async def test_a_conditional_put_whose_reply_was_lost_has_succeeded(s3: S3Server) -> None:
    rule = Rule(fault="lost_reply", operations=["put"], count=1)
    async with _between(s3, rule) as (proxy, url):
        meter = Meter()
        store = _open(proxy, url, meter)
        await store.put("k", [b"ours"], if_absent=True)
        assert meter.outcomes("put") == ["RetryableError"], "what is there is looked at"
        assert bytes(await store.get_range("k", 0, 4)) == b"ours"


async def test_a_conditional_put_that_another_won_meanwhile_has_lost(s3: S3Server) -> None:
    """The reply of the other's put is not ours to claim, whichever try of ours meets it."""
    rule = Rule(fault="reset", operations=["put"], count=1)
    async with _between(s3, rule) as (proxy, url):
        await open_store(url).put("k", [b"their"])
        meter = Meter()
        store = _open(proxy, url, meter)
        with pytest.raises(ConflictError):
            await store.put("k", [b"ours!"], if_absent=True)
        assert meter.outcomes("put") == ["RetryableError"], "what is there is looked at"
        assert bytes(await store.get_range("k", 0, 5)) == b"their"


async def test_a_conflict_that_is_not_settled_is_tried_again(s3: S3Server) -> None:
    """S3 answers 409 ConditionalRequestConflict while another conditional put is under way: the
    key may not exist afterwards, so it is no `ConflictError`."""
    rule = Rule(fault="unsettled", operations=["put"], count=1)
    async with _between(s3, rule) as (proxy, url):
        meter = Meter()
        store = _open(proxy, url, meter)
        await store.put("k", [b"ours"], if_absent=True)
        assert meter.outcomes("put") == ["RetryableError", "ok"]
        assert bytes(await store.get_range("k", 0, 4)) == b"ours"


async def test_slow_down_is_told_apart_and_waited_for(s3: S3Server) -> None:
    rule = Rule(fault="slow_down", operations=["put", "get", "head"], count=4)
    async with _between(s3, rule) as (proxy, url):
        plain = open_store(url, options=StoreOptions(endpoint=proxy.endpoint))
        with pytest.raises(OverloadedError, match="SlowDown"):
            await plain.put("k", [b"x"])
        with pytest.raises(OverloadedError):
            await plain.size("k")  # a HEAD has no body to tell by
        meter = Meter()
        store = _open(proxy, url, meter)
        started_s = asyncio.get_running_loop().time()
        await store.put("k", [b"x"])
        assert meter.outcomes("put") == ["OverloadedError", "OverloadedError", "ok"]
        # Two waits of at least half of 0.5 s and of 1 s.
        assert asyncio.get_running_loop().time() - started_s >= 0.5


async def test_a_request_that_hangs_is_given_up_and_tried_again(s3: S3Server) -> None:
    rule = Rule(fault="hang", operations=["get"], count=1)
    async with _between(s3, rule) as (proxy, url):
        meter = Meter()
        store = _open(proxy, url, meter, request_timeout_s=1)
        await store.put("k", [b"0123456789"])
        assert bytes(await store.get_range("k", 2, 5)) == b"234"
        # A slow machine may give up some more.
        assert meter.outcomes("get")[0] == "RetryableError"
        assert meter.outcomes("get")[-1] == "ok"


async def test_a_request_that_hangs_is_asked_a_second_time_meanwhile(s3: S3Server) -> None:
    rules = [Rule(fault="hang", operations=[name], count=1) for name in ("put", "get")]
    async with _between(s3, *rules) as (proxy, url):
        meter = Meter()
        store = _open(proxy, url, meter, request_timeout_s=30, hedges=True)
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        await store.put("k", [b"0123456789"])
        assert bytes(await store.get_range("k", 2, 5)) == b"234"
        assert loop.time() - started_s < 20, "no time-out was waited for"
        assert sorted(meter.outcomes("put")) == ["CancelledError", "ok"]
        assert sorted(meter.outcomes("get")) == ["CancelledError", "ok"]


async def test_a_cut_body_is_never_taken_for_the_whole(s3: S3Server) -> None:
    rule = Rule(fault="cut_body", operations=["get"], count=3)
    async with _between(s3, rule) as (proxy, url):
        meter = Meter()
        store = _open(proxy, url, meter)
        data = os.urandom(300_000)
        await store.put("k", [data])
        assert bytes(await store.get_range("k", 0, len(data))) == data
        assert meter.outcomes("get") == ["RetryableError"] * 3 + ["ok"]


async def test_a_store_that_is_away_is_retriable_until_the_deadline_and_then_back(
    s3: S3Server,
) -> None:
    async with _between(s3) as (proxy, url):
        store = Retrying(
            Timed(open_store(url, options=StoreOptions(endpoint=proxy.endpoint)), seconds=5),
            clock=SystemClock(),
            random=SeededRandom(3),
            deadline_s=1.0,
        )
        proxy.refusing = True
        with pytest.raises(RetryableError):
            await store.put("k", [b"x"])
        proxy.refusing = False
        await store.put("k", [b"x"])
        assert await store.size("k") == 1


async def test_a_large_put_survives_faults_of_its_pieces(s3: S3Server) -> None:
    rules = [
        Rule(fault="slow_down", operations=["part"], skip=2, count=1),
        Rule(fault="reset", operations=["multipart_end"], count=1),
    ]
    async with _between(s3, *rules) as (proxy, url):
        meter = Meter()
        store = _open(proxy, url, meter)
        parts = [bytes([number]) * (1 << 20) for number in range(70)]
        await store.put("k", parts)
        assert await store.size("k") == 70 << 20
        assert bytes(await store.get_range("k", (33 << 20) - 1, (33 << 20) + 1)) == bytes([32, 33])
        assert proxy.faults == {"slow_down": 1, "reset": 1}


async def test_deletes_go_in_one_request_and_listings_in_pages(s3: S3Server) -> None:
    async with _between(s3) as (proxy, url):
        store = _open(proxy, url, Meter())
        keys = [f"a/{number:04d}" for number in range(1100)]
        for at in range(0, len(keys), 100):
            await asyncio.gather(*(store.put(key, [b"x"]) for key in keys[at : at + 100]))
        proxy.operations.clear()
        assert [info.key async for info in store.list("a/")] == keys
        assert proxy.operations == {"list": 2}
        await store.delete(keys[:600])
        assert proxy.operations == {"list": 2, "delete": 1}
        assert [info.key async for info in store.list("")] == keys[600:]


async def test_delays_are_those_asked_for(s3: S3Server) -> None:
    """The proxy itself: the median of many gets is no less."""
    async with _between(s3, s3_delays(20, 60)) as (proxy, url):
        store = open_store(url, options=StoreOptions(endpoint=proxy.endpoint))
        await store.put("k", [b"x"])
        loop = asyncio.get_running_loop()
        times = []
        for _ in range(40):
            started_s = loop.time()
            await store.get_range("k", 0, 1)
            times.append(loop.time() - started_s)
        assert sorted(times)[20] >= 0.012


def test_plain_http_goes_to_loopback_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ALLOW_HTTP", raising=False)
    with pytest.raises(InvalidRequestError, match="AWS_ALLOW_HTTP"):
        open_store("s3://bucket", options=StoreOptions(endpoint="http://store.example"))
    open_store("s3://bucket", options=StoreOptions(endpoint="http://127.0.0.1:1"))
    open_store("s3://bucket", options=StoreOptions(endpoint="https://store.example"))
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    open_store("s3://bucket", options=StoreOptions(endpoint="http://store.example"))
