"""Locations open the store that they name, and none of them loads what it does not need."""

import subprocess
import sys
from pathlib import Path

import pytest

from penstock.model.errors import InvalidRequestError
from penstock.objects import LocalStore, open_store
from penstock.objects.bucket import BucketStore


async def test_paths_and_file_urls_are_local(tmp_path: Path) -> None:
    for number, location in enumerate(
        [tmp_path / "a b", str(tmp_path / "a b"), f"file://{tmp_path}/a%20b"]
    ):
        store = open_store(location)
        assert isinstance(store, LocalStore)
        await store.put(f"k{number}", [b"x"])
    assert sorted(path.name for path in (tmp_path / "a b").glob("k*")) == ["k0", "k1", "k2"]


async def test_nothing_is_made_before_the_first_put(tmp_path: Path) -> None:
    store = open_store(tmp_path / "none")
    assert [info async for info in store.list("")] == []
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("url", ["memory://", "s3://bucket/prefix", "gs://bucket", "az://box"])
def test_urls_of_buckets_open_bucket_stores(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "someone")
    assert isinstance(open_store(url), BucketStore)


@pytest.mark.parametrize("url", ["ftp://host/x", "nothing://", "s4://bucket"])
def test_other_urls_are_refused_without_telling_credentials(url: str) -> None:
    with pytest.raises(InvalidRequestError):
        open_store(url)
    with pytest.raises(InvalidRequestError) as caught:
        open_store(url.replace("://", "://user:secret@"))
    assert "secret" not in str(caught.value)


@pytest.mark.slow
def test_a_local_store_does_not_load_obstore() -> None:
    program = (
        "import sys\n"
        "from penstock.objects import open_store\n"
        "open_store('x')\n"
        "assert not any(name.startswith('obstore') for name in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
