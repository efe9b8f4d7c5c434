"""The store's contract on Azure Blob Storage's emulator, through its own protocol."""

import base64
import email.utils
import hashlib
import hmac
import itertools
import os
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from peers.build import AZURITE
from penstock.objects import open_store
from penstock.ports.objects import ObjectStore
from penstock.testing.conformance import ObjectStoreSuite
from support.ports import free_port

ACCOUNT = "devstoreaccount1"
# The emulator's own, which its documentation gives.
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
VERSION = "2021-08-06"
READY_SECONDS_MAX = 60

pytestmark = pytest.mark.skipif(
    not AZURITE.exists(), reason=f"{AZURITE} is not there: python tests/peers/build.py"
)
_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("azurite")
    port = free_port()
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                AZURITE,
                "--silent",
                "--skipApiVersionCheck",
                "--disableTelemetry",
                "--blobHost=127.0.0.1",
                f"--blobPort={port}",
                f"--location={folder}",
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    deadline = time.monotonic() + READY_SECONDS_MAX
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            break
        except OSError:
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.1)
    yield f"http://127.0.0.1:{port}/{ACCOUNT}"
    process.kill()
    process.wait(10)


def make_container(endpoint: str) -> str:
    """A new, empty container; obstore makes none."""
    name = f"container-{os.getpid()}-{next(_numbers)}"
    headers = {"x-ms-date": email.utils.formatdate(usegmt=True), "x-ms-version": VERSION}
    signed = "PUT" + "\n" * 12
    signed += "".join(f"{key}:{value}\n" for key, value in headers.items())
    signed += f"/{ACCOUNT}/{ACCOUNT}/{name}\nrestype:container"
    digest = hmac.new(base64.b64decode(KEY), signed.encode(), hashlib.sha256).digest()
    headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
    headers["Content-Length"] = "0"
    request = urllib.request.Request(
        f"{endpoint}/{name}?restype=container", method="PUT", headers=headers
    )
    urllib.request.urlopen(request, timeout=30).close()
    return name


class TestAzure(ObjectStoreSuite):
    @pytest.fixture(autouse=True)
    def _server(self, endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.endpoint = endpoint
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", ACCOUNT)
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", KEY)
        monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", endpoint)

    def make_store(self, folder: Path) -> ObjectStore:
        return open_store(f"az://{make_container(self.endpoint)}/some/prefix")
