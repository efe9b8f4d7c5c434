"""A server's life: start, serve, drain.

At the start the parts are opened (the WAL is recovered), then the Kafka port listens, and only then
the HTTP modules are imported and the HTTP port listens, since clients wait for the Kafka port.
At the end no new connections are taken, and requests under way are answered; then the log moves its
WAL to segments as far as the time allows; then everything is closed and the lock released.
"""

import asyncio
import dataclasses
import logging
import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.agent.jobs import Job, Jobs
from penstock.app import status
from penstock.app.api.status import INTERVAL_S as PIPELINE_INTERVAL_S
from penstock.app.api.status import PipelineStatus
from penstock.app.backlog import INTERVAL_S, Backlog
from penstock.app.banner import Introduction, ListenerShown
from penstock.app.embedded_parts import open_embedded
from penstock.app.host.leftover_wals import has_had_workers
from penstock.app.host.workers import JOURNAL_WRITER
from penstock.app.http.counts import HttpCounts
from penstock.app.limits import http_limits
from penstock.app.listening import Listening, as_listener
from penstock.app.parts import Environment, Parts
from penstock.app.secret_file import SecretFile, cluster_secret
from penstock.config.addresses import Address, parse_address
from penstock.config.checks import is_cluster, warnings
from penstock.config.listeners import listeners
from penstock.config.settings import ServerSettings
from penstock.log.layout import DataLayout
from penstock.model.errors import (
    ConflictError,
    FencedError,
    InvalidRequestError,
    JournalOlderError,
    PenstockError,
)
from penstock.ports.clock import Clock
from penstock.ports.random import Random
from penstock.recovery import directory
from penstock.security.audit import Audit
from penstock.security.listener import Listener
from penstock.security.passwords import PasswordChecks
from penstock.state.answers import AnyAnswer
from penstock.state.commands import AnyCommand
from penstock.system import background
from penstock.system.believed_clock import BelievedClock
from penstock.system.heard import swallowed_counts
from penstock.system.sockets import give_up_unreachable_peers

if TYPE_CHECKING:
    from penstock.app.audit_file import AuditFile
    from penstock.app.http.callers import Callers
    from penstock.app.http.keys_api import KeySources
    from penstock.app.http_port import HttpServer
    from penstock.app.self_compaction import SelfCompaction
    from penstock.peers.secret import ClusterSecret
    from penstock.security.sasl.oauthbearer import CheckToken

logger = logging.getLogger(__name__)

AUDIT_INTERVAL_S = 0.5
_SCHEMAS_AFTER_S = 0.5
_LEAVE_MAX_S = 5.0
_LOOK_S = 1.0

FATAL_EXIT_STATUS = 70
"""EX_SOFTWARE of sysexits.h. A supervisor should start the server again; the start recovers."""


def end_process(error: BaseException) -> None:
    """End the process at once.

    There are three reasons: what is durable is unknown, and only recovery can find out; or this
    agent's epoch is over; or entries that it has applied are not in the journal. An exception isn't
    enough, since the caller is a thread, and other threads could still acknowledge records.
    """
    if isinstance(error, FencedError | JournalOlderError):
        logger.critical("ending at once, since other agents go on without this one: %s", error)
    else:
        logger.critical("ending at once, since it is unknown what is durable: %s", error)
    logging.shutdown()
    os._exit(FATAL_EXIT_STATUS)


class Server:
    """One server on one event loop. Callers call `start`, then `stop`."""

    def __init__(
        self,
        settings: ServerSettings,
        *,
        clock: Clock,
        random: Random,
        elapsed_s: Callable[[], float] | None = None,
        on_fatal: Callable[[BaseException], None] = end_process,
        worker: int | None = None,
    ) -> None:
        """
        Args:
            elapsed_s: see `BelievedClock`.
            worker: this server's place among the workers of its host; None: it has no workers.
        """
        self._worker = worker
        self.settings = settings
        self._clock = BelievedClock(
            clock, after_ms=settings.clock_believed_after_ms, elapsed_s=elapsed_s
        )
        self._random = random
        self._on_fatal = on_fatal
        self._parts: Parts | None = None
        self._jobs: Jobs | None = None
        self._backlog: Backlog | None = None
        self._pipeline: PipelineStatus | None = None
        self._compaction: SelfCompaction | None = None
        self._background = background.Background()
        self._http: list[HttpServer] = []
        self._draining = False
        self._backing_up = False
        self._ready_s = 0.0
        self._listener_settings = listeners(settings)
        self.kafka_address = self._listener_settings[0].address
        """The address of the first listener of Kafka clients."""
        self.listeners: Sequence[Listener] = ()
        """The listeners of Kafka clients, once they are bound."""
        self._passwords = PasswordChecks()
        self._audit_file: AuditFile | None = None
        self._check_token: CheckToken | None = None
        self._secret_file = (
            SecretFile(Path(settings.cluster_secret_file)) if settings.cluster_secret_file else None
        )
        self._secret = cluster_secret(self._secret_file, settings.cluster_secret)
        self._own_secret: ClusterSecret | None = None
        """Known to this process alone, which calls its own HTTP port by it."""
        self.http_address = parse_address(settings.http, setting="http") if settings.http else None
        self.peer_address: Address | None = None
        """Other agents are served at this address; None until the server has started."""

    @property
    def parts(self) -> Parts:
        """The open parts; there are none before `start`."""
        assert self._parts is not None
        return self._parts

    @property
    def advertised(self) -> Address:
        """The address of this server in answers to clients."""
        broker = self.parts.broker
        return Address(broker.advertised_host, broker.advertised_port)

    async def start(self) -> None:
        """Open everything and listen.

        Raises:
            ConflictError: the data directory or an address is in use.
            CorruptDataError: the data directory's files don't hold what was written.
            RetryableError: a cluster's journal doesn't answer.
        """
        for text in warnings(self.settings):
            logger.warning("%s", text)
        kafka: list[socket.socket] = []
        listeners: list[socket.socket] = []
        try:
            # Ports are bound before the parts are opened, since the parts publish the addresses.
            # Clients are accepted only once they can be served.
            addresses = []
            for each in self._listener_settings:
                kafka.append(_bind(each.address, setting=each.setting))
                addresses.append(_bound(each.address, kafka[-1]))
            self.kafka_address = addresses[0]
            self.listeners = tuple(map(as_listener, self._listener_settings, addresses))
            listening = Listening(self.settings, self.listeners)
            if self.http_address is not None:
                listeners.append(_bind(self.http_address, setting="http"))
                self.http_address = _bound(self.http_address, listeners[0])
                if is_cluster(self.settings):
                    listeners.append(_bind_peer(self.settings.peer, self.http_address))
                    self.peer_address = _bound(
                        parse_address(self.settings.peer, setting="peer")
                        if self.settings.peer
                        else self.http_address,
                        listeners[1],
                    )
            for listener in (*kafka, *listeners):
                give_up_unreachable_peers(listener, self.settings.tcp_keepalive_ms)
            self._background = background.of_loop()
            parts = self._parts = await self._open()
            parts.broker.listeners = self.listeners
            parts.broker.authenticator = listening.authenticator(
                lambda: parts.view.credentials,
                self._passwords,
                clock=self._clock,
                random=self._random,
            )
            self._open_audit(parts)
            await parts.start()
            for bound, one in zip(kafka, self.listeners, strict=True):
                await parts.kafka.start(
                    bound, one, tls=listening.context(one), name_client=listening.name_client
                )
            self._ready_s = self._clock.monotonic_s()
            backlog = self._backlog = Backlog(
                parts.queries, parts.pool, self.settings.compaction_warn_bytes
            )
            count = Job(name="backlog of compaction", interval_s=INTERVAL_S, run=backlog.run_once)
            pipeline = self._pipeline = PipelineStatus(
                parts.queries, parts.pool, parts.view, parts.log.keeper
            )
            ask = Job(
                name="pipeline's status", interval_s=PIPELINE_INTERVAL_S, run=pipeline.run_once
            )
            look = Job(name="clock", interval_s=_LOOK_S, run=self._look_at_clock)
            self._check_token = listening.token_check(self._clock)
            if self._secret_file is not None:
                listening.add_look(self._secret_file.look)
            audit_file = self._audit_file
            audits = (
                []
                if audit_file is None
                else [
                    Job(
                        name="audit log",
                        interval_s=AUDIT_INTERVAL_S,
                        run=lambda: self._in_pool(parts, audit_file.write),
                    )
                ]
            )
            jobs = [*audits, *parts.jobs(), *listening.jobs(parts.pool), count, ask, look]
            self._jobs = Jobs(jobs, on_fatal=self._on_fatal)
            self._jobs.start()
            if self.http_address is not None:
                await self._start_http(parts, listeners)
                if self.settings.compaction and not self._worker:
                    await self._start_compaction(parts, self.http_address)
            # The modules are imported soon, so that the first member of a group needn't wait for
            # them, and on the event loop: kio's modules import one another in circles, and two
            # threads that load such modules at once deadlock; the interpreter ends that by an
            # error.
            asyncio.get_running_loop().call_later(_SCHEMAS_AFTER_S, _import_schemas)
        except BaseException:
            await self.stop()
            for listener in (*kafka, *listeners):
                listener.close()
            raise

    async def stop(self, *, after_others: bool = False) -> None:
        """Drain and close. Idempotent.

        Args:
            after_others: the other workers of this host end at the same time, and no parent makes
                the worker that writes the journal end last.
        """
        if self._parts is None:
            return
        parts, self._draining = self._parts, True
        if self._compaction is not None:
            # On another thread: its last calls are answered here.
            await asyncio.to_thread(self._compaction.close)
            self._compaction = None
        deadline_s = self.settings.drain_timeout_ms / 1000
        if self._jobs is not None:
            await self._jobs.close()
        if after_others:
            await parts.wait_for_others(deadline_s)
        await parts.leave(min(deadline_s, _LEAVE_MAX_S))
        # Both at once: members that wait for a rebalance get their answers when the coordinator
        # closes, and the drain waits for these answers.
        await asyncio.gather(parts.kafka.drain(deadline_s), parts.groups.close())
        drained = await parts.drain(deadline_s)
        if not drained:
            logger.info("the WAL still holds records; the next start serves them from the WAL")
        await asyncio.gather(*(port.close() for port in self._http))
        parts.closing.close()
        self._passwords.close()
        self._parts = None

    def status(self) -> dict[str, object]:
        """See `penstock.app.status`."""
        told = status.status(
            self.parts, kafka=self.kafka_address, http=self.http_address, ready_s=self._ready_s
        )
        return {
            **told,
            "compaction_backlog": self._backlog.status() if self._backlog else None,
            "pipeline": self._pipeline.status() if self._pipeline else None,
            "compaction": self._compaction.status() if self._compaction else None,
            "background_failures": self._background.status(),
            "swallowed_errors": {
                cause: count for cause, count in swallowed_counts().items() if count
            },
        }

    async def back_up(
        self, destination: str, progress: directory.Progress | None = None
    ) -> dict[str, object]:
        """Copy every record acknowledged so far, while serving.

        Args:
            destination: a path or URL of an object store that holds no backup yet.
            progress: gets the bytes copied so far and the bytes in all, on the event loop.

        Returns:
            The backup's manifest.

        Raises:
            ConflictError: another backup is being made, or the destination holds one already.
        """
        if self._backing_up:
            raise ConflictError(
                "back up", destination, "another backup is being made", "try again after it"
            )
        self._backing_up = True
        try:
            return await self.parts.back_up(destination, progress)
        finally:
            self._backing_up = False

    async def _look_at_clock(self) -> None:
        # An idle server reads no time, but a clock is believed only after it was read for a while.
        self._clock.look()

    def introduction(self) -> Introduction:
        """Describe this server once clients are served."""
        broker = self.parts.broker
        return Introduction(
            pid=os.getpid(),
            advertised=self.advertised,
            http=self.http_address,
            data=str(self.parts.layout.root),
            cluster_id=broker.cluster_id,
            node_id=broker.node_id,
            listeners=tuple(
                ListenerShown(
                    each.name,
                    str(each.protocol),
                    Address(each.advertised_host, each.advertised_port),
                )
                for each in self.listeners
            ),
        )

    def not_ready(self) -> str:
        """Return the reason why clients are not served as they should be, or ""."""
        if self._draining:
            return "draining"
        return self.parts.not_ready() or self._background.not_ready()

    async def _open(self) -> Parts:
        first = self.listeners[0]
        advertised = Address(first.advertised_host, first.advertised_port)
        environment = Environment(
            clock=self._clock,
            random=self._random,
            on_fatal=self._on_fatal,
            advertised=advertised,
            listeners=self.listeners,
            secret=self._secret,
            peer=_reached(self.peer_address or self.http_address, advertised),
            http=_reached(self.http_address, advertised) if self.peer_address else None,
        )
        if is_cluster(self.settings):
            # An embedded server starts sooner without what only a cluster needs.
            from penstock.app.cluster_parts import open_cluster_agent

            return await open_cluster_agent(self.settings, environment)
        if self._worker is not None:
            from penstock.app.host import parts as worker_parts

            if self._worker == JOURNAL_WRITER:
                return await worker_parts.open_writer(self.settings, environment)
            return await worker_parts.open_worker(self.settings, environment, index=self._worker)
        if has_had_workers(DataLayout.of(self.settings.data)):
            from penstock.app.host import parts as worker_parts

            return await worker_parts.open_writer(self.settings, environment)
        return await open_embedded(self.settings, environment)

    async def _start_http(self, parts: Parts, listeners: Sequence[socket.socket]) -> None:
        backlog = self._backlog
        assert backlog is not None
        for name, failures in (
            ("penstock_background_task_failures_total", self._background.counts),
            ("penstock_swallowed_errors_total", swallowed_counts()),
        ):
            parts.metrics.share(name, failures)
        parts.metrics.on_scrape(
            lambda: {**status.gauges(parts, ready_s=self._ready_s), **backlog.gauges()}
        )
        # The modules load in a thread, so that Kafka clients are answered meanwhile.
        await asyncio.get_running_loop().run_in_executor(parts.pool, _import_http)
        from penstock.app import http_port as http
        from penstock.app.http.gate import HttpGate
        from penstock.app.http.targets import Targets

        secret = self._secret
        asks = parts.broker.authority is not None
        targets = Targets(
            self.settings.backup_targets,
            takes_any=not asks,
            instance_credentials=self.settings.backup_instance_credentials,
        )
        sources = http.HttpSources(
            metrics=parts.metrics,
            status=self.status,
            not_ready=self.not_ready,
            back_up=self.back_up,
            callers=self._callers(parts, secret),
            topics=lambda: [topic.name for topic in parts.view.topics()],
            hosts=self._hosts(),
            keys=self._key_sources(parts),
            agents=parts.agent_sources(),
            pipeline=parts.pipeline_sources(),
            repair=dataclasses.replace(parts.repair_sources(), targets=targets),
            targets=targets,
        )
        names = ("http", "peer")[: len(listeners)]
        counts = HttpCounts(parts.metrics, names)
        limits = http_limits(self.settings)
        gates = [HttpGate(name, limits, self._clock, counts.count) for name in names]
        applications = [http.application(sources, gates[0])]
        peers = parts.peer_sources()
        if peers is not None and secret is not None:
            applications.append(http.peer_application(peers, secret, gates[1]))
        for app, gate, listener in zip(applications, gates, listeners, strict=True):
            listener.listen()
            self._http.append(http.HttpServer(app, gate, listener))
            self._http[-1].start()

    @staticmethod
    async def _in_pool(parts: Parts, work: Callable[[], None]) -> None:
        await asyncio.get_running_loop().run_in_executor(parts.pool, work)

    def _open_audit(self, parts: Parts) -> None:
        settings = self.settings
        if not settings.audit_file:
            return
        from penstock.app.audit_file import AuditFile

        audit = Audit(now_ms=self._clock.now_ms, sample_every=settings.audit_sample_every)
        path = Path(settings.audit_file)
        if self._worker:
            path = path.with_name(f"{path.name}-worker-{self._worker}")
        try:
            file = AuditFile(
                audit,
                path,
                bytes_max=settings.audit_file_bytes_max,
                files_max=settings.audit_files_max,
            )
        except OSError as error:
            raise InvalidRequestError(
                "open audit log", str(path), error.strerror or str(error), "see audit_file"
            ) from error
        parts.broker.audit = audit
        parts.closing.callback(file.close)
        self._audit_file = file
        parts.metrics.on_scrape(
            lambda: {
                "penstock_audit_entries": float(file.written_count),
                "penstock_audit_entries_lost": float(audit.lost_count),
            }
        )

    def _callers(self, parts: Parts, secret: "ClusterSecret | None") -> "Callers":
        from penstock.app.http.callers import Callers
        from penstock.peers.secret import ClusterSecret

        authority = parts.broker.authority
        if authority is not None or secret is not None:
            # Its own compaction must be known among callers that are asked who they are.
            self._own_secret = ClusterSecret(self._random.token_bytes(32).hex())
        return Callers(
            secret=secret,
            own=self._own_secret,
            authority=authority,
            keys=lambda: parts.view.api_keys,
            check_token=self._check_token,
            audit=parts.broker.audit,
            now_ms=self._clock.now_ms,
        )

    def _key_sources(self, parts: Parts) -> "KeySources":
        from penstock.app.http.keys_api import KeySources

        async def commit(command: AnyCommand) -> AnyAnswer:
            (answer,) = await parts.log.commit([command])
            return answer

        return KeySources(
            keys=lambda: parts.view.api_keys,
            commit=commit,
            random=self._random,
            now_ms=self._clock.now_ms,
        )

    def _hosts(self) -> "Callable[[str], bool] | None":
        """Say which hosts requests may name. Where each needs a credential, a web page that has
        this port's address for its own has none to send."""
        from penstock.app.http.guard import local_hosts

        names, address = self.settings.http_hosts, self.http_address
        assert address is not None
        open_to_pages = address.is_loopback and not self.settings.cluster_secret
        return local_hosts(names) if names or open_to_pages else None

    async def _start_compaction(self, parts: Parts, http: Address) -> None:
        # These modules load in a thread, too.
        await asyncio.get_running_loop().run_in_executor(parts.pool, _import_compaction)
        from penstock.app.self_compaction import SelfCompaction

        settings, failures = self.settings, self._background
        loop = asyncio.get_running_loop()

        def failed(error: PenstockError) -> None:
            loop.call_soon_threadsafe(failures.failed, background.COMPACTION, error)

        self._compaction = SelfCompaction(
            url=f"http://{http.from_here}",
            secret=self._own_secret,
            interval_s=settings.compaction_interval_ms / 1000,
            metrics=parts.metrics,
            failed=failed,
        )
        self._compaction.start()


def _import_http() -> None:
    import penstock.app.http_port  # noqa: F401


def _import_compaction() -> None:
    import penstock.app.self_compaction  # noqa: F401


def _import_schemas() -> None:
    from penstock.kafka.wire import schema

    schema.load()


def _reached(own: Address | None, advertised: Address) -> Address | None:
    """Return the address by which other processes reach a port: the host that clients reach, where
    the port listens on all interfaces."""
    if own is None or not own.is_wildcard:
        return own
    return Address(advertised.host, own.port)


def _bind(address: Address, *, setting: str) -> socket.socket:
    """Return a socket that holds the address; connections are accepted only once it listens.

    Raises:
        ConflictError: the address is taken, or not this machine's.
    """
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Accepted sockets inherit the option, which some event loops don't set. An answer's head
        # and body are two writes: the second would wait 40 ms for an acknowledgement of the first.
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise ConflictError(
            "listen", f"{setting} {address}", error.strerror or str(error), "choose another address"
        ) from error
    return bound


def _bind_peer(wanted: str, http: Address) -> socket.socket:
    """Return the socket for other agents.

    Args:
        wanted: the setting `peer`; "": the port after that of `http`. If this port is taken, as
            where agents of one host have consecutive ports, any free port is used.

    Raises:
        ConflictError: see `_bind`.
    """
    if wanted:
        return _bind(parse_address(wanted, setting="peer"), setting="peer")
    try:
        return _bind(Address(http.host, (http.port + 1) % 65536), setting="peer")
    except ConflictError as error:
        logger.info("other agents are served on a port that was free: %s", error)
        return _bind(Address(http.host, 0), setting="peer")


def _bound(wanted: Address, bound: socket.socket) -> Address:
    return Address(wanted.host, bound.getsockname()[1])
