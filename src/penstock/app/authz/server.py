"""The authorization service on its port: API, health and metrics, from its start to its end."""

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from penstock.agent.patience import until_answered
from penstock.app.authz.connection import ApiConnection
from penstock.app.authz.watching import file_stamp, watch
from penstock.app.http.counts import HttpCounts
from penstock.app.http.gate import HttpGate, HttpLimits
from penstock.authz.service.call import Answer, Call
from penstock.authz.service.decisions import DecisionLog, DecisionSettings
from penstock.authz.service.handling import Answering
from penstock.authz.service.service import (
    DEFAULT_ENVIRONMENT,
    FILES_OF_ENVIRONMENT,
    OPEN_MAX,
    TEST_KEY,
    Service,
)
from penstock.config.addresses import Address
from penstock.model.errors import ConflictError, InvalidRequestError
from penstock.objects.opening import open_reliable_store
from penstock.observability.exposition import CONTENT_TYPE, Exposition
from penstock.observability.histogram import Histogram
from penstock.observability.metrics import Metrics
from penstock.order.local_journal import new_cluster_id
from penstock.ports.clock import Clock
from penstock.ports.random import Random
from penstock.replica.postgres import PostgresJournal
from penstock.replica.snapshot_process import write_snapshot_apart
from penstock.replica.snapshot_turns import SnapshotSettings
from penstock.system import background
from penstock.system.heard import swallowed_counts
from penstock.version import VERSION

PORT_NAME: Final = "authz"
_BACKLOG: Final = 512
_WRITER_BYTES: Final = 4
_LOOK_S: Final = 1.0
_DRAIN_S: Final = 10.0
_OTHER_FILES: Final = 50
_TEXT: Final = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthzSettings:
    """The options of `penstock authz serve`."""

    data: Path
    http: Address
    policy: Path | None = None
    watches: bool = False
    with_test_key: bool = False
    fsync: bool = True
    connections_max: int = 1_000
    environments_open_max: int = OPEN_MAX
    journal: str = ""
    """A PostgreSQL database's URL; empty: each database of `data` has a journal of its own."""
    journal_name: str = "authz"
    stale_s: float = 60.0
    """Not ready after this time without a look at the shared journal."""
    snapshots: str = ""
    """URL of the store of snapshots of a shared journal; empty: none are taken."""
    snapshot_settings: SnapshotSettings = field(default_factory=SnapshotSettings)
    decisions: DecisionSettings | None = None
    """The log of decisions; None: there is none."""


def within(settings: AuthzSettings, files: int) -> AuthzSettings:
    """Fit connections and open environments into a limit of open files: half of it each at most."""
    half = files // 2
    return replace(
        settings,
        connections_max=max(10, min(settings.connections_max, half - _OTHER_FILES)),
        environments_open_max=max(
            4, min(settings.environments_open_max, half // FILES_OF_ENVIRONMENT)
        ),
    )


class AuthzServer:
    """One process's server. Event loop only: `start`, then `stop`."""

    def __init__(self, settings: AuthzSettings, *, clock: Clock, random: Random) -> None:
        """Raises: InvalidRequestError: the settings don't go together."""
        if settings.with_test_key and not settings.http.is_loopback:
            raise InvalidRequestError(
                "serve",
                str(settings.http),
                "the test key is public, and this address can be reached from other machines",
                "serve on 127.0.0.1, or without the test key",
            )
        if settings.snapshots and not settings.journal:
            raise InvalidRequestError(
                "serve",
                "--snapshots",
                "they are of a shared journal, and there is none",
                "add --journal URL",
            )
        self.settings = settings
        self.address = settings.http
        self.service = Service(
            settings.data,
            clock=clock,
            random=random,
            fsync=settings.fsync,
            open_max=settings.environments_open_max,
            open_journal=self._open_journal if settings.journal else None,
            snapshots=(
                open_reliable_store(
                    settings.snapshots,
                    clock=clock,
                    random=random,
                    writer=random.token_bytes(_WRITER_BYTES).hex(),
                )
                if settings.snapshots
                else None
            ),
            snapshot_settings=settings.snapshot_settings,
            write_snapshot=write_snapshot_apart,
            decisions=_decision_log(settings.decisions, clock, random),
        )
        self._random = random
        self.metrics = Metrics()
        self._clock = clock
        self._started_s = clock.monotonic_s()
        counts = HttpCounts(self.metrics, [PORT_NAME])
        limits = HttpLimits(connections_max=settings.connections_max)
        self._gate = HttpGate(PORT_NAME, limits, clock, counts.count)
        self._connections: set[ApiConnection] = set()
        self._histograms: dict[str, Histogram] = {}
        self._exposition = Exposition(self.metrics, version=VERSION)
        self._listener: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self._look_timer: asyncio.TimerHandle | None = None
        self._watching: asyncio.Task[None] | None = None
        self._emptied: asyncio.Future[None] | None = None

    @property
    def key_place(self) -> str:
        """The place where a reader finds a key, or the test key itself."""
        if self.settings.with_test_key:
            return TEST_KEY
        if self.settings.journal and not self.service.key_file.exists():
            return "as the journal's first instance has it"
        return str(self.service.key_file)

    async def start(self) -> None:
        """Open the data, set the policy, and listen. Raises: PenstockError."""
        await until_answered(partial(self.service.open, with_test_key=self.settings.with_test_key))
        for name in self.service.api.names:
            self._histograms[name] = self.metrics.histogram(
                "penstock_authz_call_duration_seconds", name
            )
        self.metrics.share("penstock_swallowed_errors_total", swallowed_counts())
        self.metrics.on_scrape(self._gauges)
        self.metrics.on_scrape_by_label(self._labelled)
        path = self.settings.policy
        since = None
        if path is not None:
            since = file_stamp(path)
            await self.set_policy()
        loop = asyncio.get_running_loop()
        self._listener = _listen(self.settings.http)
        host, port = self._listener.getsockname()[:2]
        self.address = Address(host, port)
        self._server = await loop.create_server(self._accept, sock=self._listener, backlog=_BACKLOG)
        self._look_timer = loop.call_later(_LOOK_S, self._look)
        if path is not None and self.settings.watches:
            watched = partial(watch, path, since, self.set_policy)
            self._watching = background.start(background.WATCH_POLICY, watched)

    async def stop(self) -> None:
        """Take no more connections, answer what was asked, and close the data; idempotent."""
        if self._look_timer is not None:
            self._look_timer.cancel()
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        if self._server is not None:
            self._server.close()
        deadline_s = self._clock.monotonic_s() + _DRAIN_S
        for connection in list(self._connections):
            connection.drain()
        while self._connections and self._clock.monotonic_s() < deadline_s:
            self._emptied = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._emptied], timeout=_DRAIN_S)
        for connection in list(self._connections):
            connection.cut()
        await self.service.close()

    async def set_policy(self) -> None:
        """Set the policy of the file that the settings name.

        Raises:
            InvalidRequestError: it is refused; the message says why.
        """
        path = self.settings.policy
        assert path is not None
        try:
            source = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidRequestError("read policy", str(path), str(error)) from error
        environment = self.service.environment(DEFAULT_ENVIRONMENT)
        answer = await self.service.changes.set_policy(environment, source, path.name)
        if answer.status >= 300:
            text = _message(answer.body)
            raise InvalidRequestError("set policy", str(path), f"it is refused:\n{text}")

    # -- requests --------------------------------------------------------------------------------

    def _accept(self) -> ApiConnection:
        connection = _Counted(
            self._gate, self._serve, self._answered, self._connections, self._left
        )
        self._connections.add(connection)
        return connection

    def _left(self) -> None:
        emptied = self._emptied
        if not self._connections and emptied is not None and not emptied.done():
            emptied.set_result(None)

    def _serve(self, call: Call) -> Answering:
        if call.path.startswith(("/api/", "/v1/")):
            return self.service.api.call(call)
        if call.method in ("GET", "HEAD"):
            match call.path:
                case "/healthz":
                    return _text("ok\n")
                case "/readyz":
                    reason = self._not_ready()
                    return _text(f"{reason}\n", 503) if reason else _text("ready\n")
                case "/metrics":
                    return Answer(200, self._exposition.text(), content_type=CONTENT_TYPE)
                case "/":
                    return _text(f"Penstock {VERSION}, authorization: see docs/authz.md.\n")
                case _:
                    pass
        return self.service.api.call(call)

    def _answered(self, call: Call, status: int, seconds: float) -> None:
        self._histograms[self.service.api.name(call)].observe(seconds)
        if status >= 400:
            self.metrics.add("penstock_authz_failed_calls_total", 1, str(status))

    def _look(self) -> None:
        self._gate.look()
        self._look_timer = asyncio.get_running_loop().call_later(_LOOK_S, self._look)

    def _gauges(self) -> dict[str, float]:
        now_s = self._clock.monotonic_s()
        found = {
            "penstock_uptime_seconds": now_s - self._started_s,
            "penstock_authz_environments": float(len(self.service.directory.environments)),
        }
        shard = self.service.shard
        if shard is not None:
            found["penstock_authz_journal_confirmed_seconds"] = now_s - shard.head_confirmed_s
            found["penstock_authz_journal_position"] = float(shard.position)
        decisions = self.service.decisions
        if decisions is not None:
            found["penstock_authz_logged_decisions_total"] = float(decisions.logged_count)
            found["penstock_authz_dropped_decisions_total"] = float(decisions.dropped_count)
        archivist = self.service.archivist
        if archivist is not None:
            found["penstock_authz_snapshot_position"] = float(archivist.position)
            found["penstock_authz_snapshots_total"] = float(archivist.taken_count)
        return found

    def _not_ready(self) -> str:
        """Say why answers may be too old; empty: they aren't."""
        shard = self.service.shard
        if shard is None:
            return ""
        stale_s = self._clock.monotonic_s() - shard.head_confirmed_s
        if stale_s <= self.settings.stale_s:
            return ""
        return f"the journal was last seen {stale_s:.0f} s ago: answers are as old as that"

    async def _open_journal(self) -> PostgresJournal:
        return await PostgresJournal.open(
            self.settings.journal,
            name=self.settings.journal_name,
            new_cluster_id=lambda: new_cluster_id(self._random),
        )

    def _labelled(self) -> dict[str, dict[str, float]]:
        compared = self.service.compared
        return {
            "penstock_authz_position": {
                name: float(each.position) for name, each in self.service.environments.items()
            },
            "penstock_authz_compared_decisions_total": {
                _compared_label(same): float(count) for same, count in compared.items()
            },
        }


def _decision_log(
    settings: DecisionSettings | None, clock: Clock, random: Random
) -> DecisionLog | None:
    """Open the log of decisions. Raises: InvalidRequestError: its file can't be written."""
    if settings is None:
        return None
    try:
        return DecisionLog(settings, clock=clock, random=random)
    except OSError as error:
        raise InvalidRequestError("open", "decision log", str(error)) from error


class _Counted(ApiConnection):
    """A connection that leaves the server's set when it is gone."""

    def __init__(
        self,
        gate: HttpGate,
        serve: Callable[[Call], Answering],
        answered: Callable[[Call, int, float], None],
        connections: set[ApiConnection],
        left: Callable[[], None],
    ) -> None:
        super().__init__(gate, serve, answered)
        self._connections = connections
        self._left = left

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio."""
        super().connection_lost(exc)
        self._connections.discard(self)
        self._left()


def _listen(address: Address) -> socket.socket:
    """Return a socket that holds the address. Raises: ConflictError: it is taken."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.bind((address.host, address.port))
    except OSError as error:
        listener.close()
        raise ConflictError(
            "listen", str(address), error.strerror or str(error), "choose another with --http"
        ) from error
    return listener


def _message(body: bytes) -> str:
    found = msgspec.json.decode(body)
    return str(found.get("message", found))


def _compared_label(is_same: bool) -> str:  # noqa: FBT001
    return "same" if is_same else "different"


def _text(text: str, status: int = 200) -> Answer:
    return Answer(status, text.encode(), content_type=_TEXT)
