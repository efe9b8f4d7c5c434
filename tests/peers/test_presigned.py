"""Presigned URLs on stores that check signatures: what they allow, for how long, and that a put by
one takes no other object's place."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Literal

import pytest

from peers.build import AZURITE, BINARY
from peers.test_azure import ACCOUNT, KEY, endpoint, make_container  # noqa: F401 - a fixture
from peers.test_second_s3 import server  # noqa: F401 - a fixture
from penstock.model.errors import CorruptDataError, NotFoundError
from penstock.objects import open_store
from penstock.pipeline.presigned import AccessOverError, ObjectThereError, PresignedCalls
from penstock.ports.objects import sign_through
from support.s3 import VersityServer, environment

S3_KEY, OTHER = "segments/aa/1.seg", "segments/aa/2.seg"
Sign = Callable[[Literal["GET", "PUT"], str, int], str]


@pytest.fixture(params=["s3", "azure"])
def sign(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Sign:
    """Signs one URL of an empty store."""
    if request.param == "s3":
        if not BINARY.is_file():
            pytest.skip(f"{BINARY} is not there: python tests/peers/build.py")
        server: VersityServer = request.getfixturevalue("server")
        for name, value in environment(server.endpoint).items():
            monkeypatch.setenv(name, value)
        location = f"s3://{server.make_bucket()}/some/prefix"
    else:
        if not AZURITE.exists():
            pytest.skip(f"{AZURITE} is not there: python tests/peers/build.py")
        endpoint: str = request.getfixturevalue("endpoint")
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", ACCOUNT)
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", KEY)
        monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", endpoint)
        location = f"az://{make_container(endpoint)}/some/prefix"
    store = open_store(location)

    def one(method: Literal["GET", "PUT"], key: str, seconds: int) -> str:
        (url,) = asyncio.run(sign_through(store, method, [key], seconds))
        return url

    return one


def test_an_object_is_put_once_and_read_by_ranges(sign: Sign) -> None:
    calls = PresignedCalls(timeout_s=10)
    put, get = sign("PUT", S3_KEY, 60), sign("GET", S3_KEY, 60)
    with pytest.raises(NotFoundError):
        calls.get_range(get, S3_KEY, 0, 1)
    assert calls.put(put, S3_KEY, [b"01234", memoryview(b"56789")])
    with pytest.raises(ObjectThereError):
        calls.put(put, S3_KEY, [b"another"])
    assert calls.get_range(get, S3_KEY, 2, 5) == b"234"
    assert calls.get_range(get, S3_KEY, 0, 10) == b"0123456789"
    assert calls.size(get, S3_KEY) == 10
    with pytest.raises(CorruptDataError):
        calls.get_range(get, S3_KEY, 5, 11)
    with pytest.raises(CorruptDataError):
        calls.get_range(get, S3_KEY, 10, 11)
    calls.close()


def test_a_url_is_good_for_one_thing_and_a_while(sign: Sign) -> None:
    calls = PresignedCalls(timeout_s=10)
    assert calls.put(sign("PUT", S3_KEY, 60), S3_KEY, [b"0123456789"])
    get = sign("GET", S3_KEY, 60)
    with pytest.raises(AccessOverError):
        calls.put(get, S3_KEY, [b"another"])
    with pytest.raises(AccessOverError):
        calls.get_range(get.replace(S3_KEY, OTHER), OTHER, 0, 1)
    short = sign("GET", S3_KEY, 1)
    until = time.monotonic() + 30
    with pytest.raises(AccessOverError):
        while time.monotonic() < until:
            assert calls.get_range(short, S3_KEY, 0, 1) == b"0"
            time.sleep(0.2)
    assert calls.get_range(get, S3_KEY, 0, 10) == b"0123456789"
    calls.close()
