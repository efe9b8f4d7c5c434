"""The store's contract on a second, independent S3 server, which checks signatures."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from peers.build import BINARY
from penstock.model.errors import PenstockError
from penstock.objects import Retrying, StoreOptions, Timed, open_reliable_store, open_store
from penstock.ports.objects import ObjectStore
from penstock.system.clock import SystemClock
from penstock.testing.conformance import ObjectStoreSuite
from support.s3 import VersityServer, environment
from support.s3_proxy import Rule, S3ProxyProcess
from support.simulated.randomness import SeededRandom

pytestmark = pytest.mark.skipif(
    not BINARY.is_file(), reason=f"{BINARY} is not there: python tests/peers/build.py"
)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VersityServer]:
    folder = tmp_path_factory.mktemp("versity")
    server = VersityServer(log=folder / "server.log", binary=BINARY)
    server.start()
    yield server
    server.stop()


class TestVersity(ObjectStoreSuite):
    @pytest.fixture(autouse=True)
    def _server(self, server: VersityServer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.server = server
        for name, value in environment(server.endpoint).items():
            monkeypatch.setenv(name, value)

    def make_store(self, folder: Path) -> ObjectStore:
        return open_reliable_store(
            f"s3://{self.server.make_bucket()}/some/prefix",
            clock=SystemClock(),
            random=SeededRandom(2),
        )


class TestVersityThroughAFaultyNetwork(ObjectStoreSuite):
    """Signatures stay right behind the proxy; retries hide its faults."""

    @pytest.fixture(autouse=True)
    def _proxy(
        self, server: VersityServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[None]:
        self.server = server
        with S3ProxyProcess(upstream=server.endpoint, log=tmp_path / "proxy.log", seed=3) as proxy:
            for name, value in environment(proxy.endpoint).items():
                monkeypatch.setenv(name, value)
            proxy.set_rules(
                *(
                    Rule(fault=fault, percent=6)
                    for fault in ("slow_down", "reset", "lost_reply", "cut_body")
                )
            )
            yield

    def make_store(self, folder: Path) -> ObjectStore:
        return Retrying(
            Timed(open_store(f"s3://{self.server.make_bucket()}/p"), seconds=2),
            clock=SystemClock(),
            random=SeededRandom(1),
            deadline_s=20,
            first_delay_s=0.01,
            delay_max_s=0.2,
            slow_down_delay_s=0.05,
        )


async def test_a_wrong_key_is_refused_and_told(
    server: VersityServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment(server.endpoint).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    store = open_store(
        f"s3://{server.make_bucket()}", options=StoreOptions(endpoint=server.endpoint)
    )
    with pytest.raises(PenstockError, match=r"SignatureDoesNotMatch|credentials") as caught:
        await store.put("k", [b"x"])
    assert "wrong" not in str(caught.value)
