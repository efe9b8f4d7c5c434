"""URLs for whoever has no credentials: which stores give them, through which decorators."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from obstore.store import MemoryStore

from penstock.model.errors import InvalidRequestError
from penstock.objects import Hedged, Metered, Retrying, Timed, open_reliable_store, open_store
from penstock.objects.bucket import BucketStore
from penstock.objects.origins import inherited_key, open_origins
from penstock.ports.objects import SignedMethod, sign_through
from penstock.system.clock import SystemClock
from penstock.system.randomness import SystemRandom


class Meter:
    def measured(self, *, operation: str, outcome: str, seconds: float, bytes_count: int) -> None:
        pass


class Signing(BucketStore):
    """Memory that signs, as no real one does."""

    def __init__(self) -> None:
        super().__init__(MemoryStore())

    async def sign(self, method: SignedMethod, keys: Sequence[str], seconds: int) -> Sequence[str]:
        return [f"{method} {key} {seconds}" for key in keys]


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "somebody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nobody-knows")
    monkeypatch.setenv("AWS_REGION", "eu-central-1")


@pytest.mark.usefixtures("aws")
async def test_a_bucket_signs_below_its_prefix_and_tells_no_secret() -> None:
    store = open_reliable_store(
        "s3://bucket/some/prefix", clock=SystemClock(), random=SystemRandom(), meter=Meter()
    )
    keys = ["segments/aa/1.seg", "segments/bb/2.seg"]
    urls = await sign_through(store, "GET", keys, 120)
    for key, url in zip(keys, urls, strict=True):
        assert urlsplit(url).path.endswith(f"/some/prefix/{key}")
        query = parse_qs(urlsplit(url).query)
        assert query["X-Amz-Expires"] == ["120"]
        assert query["X-Amz-SignedHeaders"] == ["host"], "a condition may be sent along"
        assert "nobody-knows" not in url
    assert await sign_through(store, "PUT", keys[:1], 120) != urls[:1]
    with pytest.raises(InvalidRequestError):
        await sign_through(store, "GET", ["../other"], 120)


async def test_memory_and_directories_cannot(tmp_path: Path) -> None:
    for store in (open_store("memory://"), open_store(tmp_path)):
        assert await sign_through(store, "GET", ["a", "b"], 60) == ["", ""]


async def test_decorators_pass_it_on() -> None:
    clock, random = SystemClock(), SystemRandom()
    store = Retrying(
        Hedged(Metered(Timed(Signing(), seconds=5), clock=clock, meter=Meter())),
        clock=clock,
        random=random,
    )
    assert await sign_through(store, "PUT", ["a"], 60) == ["PUT a 60"]


async def test_objects_of_another_cluster_are_not_signed() -> None:
    url = "s3://parent/log"
    store = open_origins(Signing(), [url], lambda _: Signing())
    keys = ["a", inherited_key(url, "a"), "b"]
    assert await sign_through(store, "GET", keys, 60) == ["GET a 60", "", "GET b 60"]
