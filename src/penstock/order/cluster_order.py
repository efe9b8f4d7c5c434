"""The order of a cluster's agent: commands go to the shared journal, answers come by applying it.

No leader and no guess: an entry is appended, perhaps more than once, and what became of it is what
this agent's own replica makes of the journal. See docs/cluster.md and docs/formats/journal.md.

    order = await ClusterOrder.open(...)     # caught up with the journal, then standing still
    view = StateView.load(...)               # reads the replica at `order.position`
    await order.start(on_applied=..., ...)   # follows on, and opens this agent's epoch
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Generic, TypeVar

from penstock.model.epochs import epoch_floor
from penstock.model.errors import (
    FatalStorageError,
    FencedError,
    InDoubtError,
    NotFoundError,
    OtherClusterError,
    PenstockError,
    RetryableError,
    StorageFullError,
)
from penstock.order.clock_skew import ClockSkew
from penstock.order.entry_sender import EntrySender
from penstock.order.outcome import Outcome
from penstock.order.port import AppliedEntry, OnApplied
from penstock.order.protocol import (
    AgentIdentity,
    CommandProtocol,
    Levels,
    OrderedMachine,
)
from penstock.order.write_stop import WriteStop
from penstock.ports.clock import Clock
from penstock.ports.journal import Journal
from penstock.ports.random import Random
from penstock.replica.digest_pins import DigestPins
from penstock.replica.ended_tasks import end_tasks
from penstock.replica.follower import Follower, FollowerSettings
from penstock.replica.heads import HeadReading
from penstock.replica.replica import Replica
from penstock.replica.snapshot import SnapshotInfo
from penstock.system import background
from penstock.system.backoff import Backoff
from penstock.system.heard import Cause, heard

logger = logging.getLogger(__name__)

UNSTORED_BYTES_MAX: Final = 32 << 20
"""Entries that may wait in memory for space on the replica's disk before records are refused."""
SEND_AGAIN: Final = Backoff(first_s=0.02, most_s=1.0)
"""Before entries are sent again whose sending failed."""
_TOKEN_BYTES: Final = 16
_EPOCH_TRIES: Final = 8

CommandT = TypeVar("CommandT")
AnswerT = TypeVar("AnswerT")
ChangeT = TypeVar("ChangeT")
OnStopped = Callable[[PenstockError], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOrderSettings:
    """Deadlines and pauses."""

    commit_timeout_s: float = 30.0
    """How long `commit` waits, where its caller doesn't say."""
    confirm_timeout_s: float = 5.0
    open_timeout_s: float = 300.0
    """Until the replica has caught up with the journal."""
    register_timeout_s: float = 15.0
    backoff: Backoff = SEND_AGAIN
    clock_believed_after_ms: int = 600_000
    """How long after clocks were last apart they are believed again."""
    follower: FollowerSettings = field(default_factory=FollowerSettings)


class ClusterOrder(Generic[CommandT, AnswerT, ChangeT]):
    """One agent's end of the journal. Event loop only, but for what says otherwise."""

    def __init__(
        self,
        journal: Journal,
        replica: Replica[Outcome[AnswerT, ChangeT]],
        machine: OrderedMachine,
        levels: Levels[CommandT, ChangeT],
        protocol: CommandProtocol[CommandT, AnswerT],
        *,
        identity: AgentIdentity,
        cluster_id: str,
        clock: Clock,
        wall: Clock | None,
        random: Random,
        executor: Executor | None,
        settings: ClusterOrderSettings,
    ) -> None:
        """Use `open`."""
        self._journal = journal
        self._replica = replica
        self._machine = machine
        self._levels = levels
        self._protocol = protocol
        self._key_of = protocol.key_of
        self._identity = identity
        self._clock = clock
        self._wall = wall or clock
        self._random = random
        self._executor = executor
        self._settings = settings
        self.cluster_id = cluster_id
        self.agent_id = identity.agent_id
        self.epoch = 0
        """0 until `start` has opened one."""
        self.found_ms = replica.time_ms
        """Journal time of the replica before it caught up; 0: it is new."""
        self._skewed_s = float("-inf")
        self._skew = ClockSkew()
        self.write_stop = WriteStop(protocol.is_never_stopped)
        """Set where replicas differ and it is unknown which of them is wrong."""
        self.digest_pins = DigestPins[Outcome[AnswerT, ChangeT]](
            replica.path, lambda outcome: outcome.asks_digest
        )
        """The state that a digest was asked of."""
        self._on_applied: OnApplied[AnswerT, ChangeT] = lambda _: None
        self._on_answered: OnApplied[AnswerT, ChangeT] = lambda _: None
        self._on_stopped: OnStopped = lambda _: None
        self._follower = self._new_follower()
        self._sender = self._new_sender()
        self._is_registered = False
        self._failure: PenstockError | None = None
        self._following: asyncio.Task[None] | None = None
        self._closed = False

    @classmethod
    async def open(
        cls,
        journal: Journal,
        replica: Replica[Outcome[AnswerT, ChangeT]],
        machine: OrderedMachine,
        levels: Levels[CommandT, ChangeT],
        protocol: CommandProtocol[CommandT, AnswerT],
        *,
        identity: AgentIdentity,
        cluster_id: str,
        clock: Clock,
        wall: Clock | None = None,
        random: Random,
        executor: Executor | None = None,
        settings: ClusterOrderSettings | None = None,
    ) -> "ClusterOrder[CommandT, AnswerT, ChangeT]":
        """Bring the replica to a head of the journal; then it stands still until `start`.

        Args:
            replica: opened with `fsync=False` and `keeps_journal=False`; the order's from now on,
                closed with it.
            machine: reads the state of the machine that the replica was opened with.
            levels: those of that state, as of the last `next_epoch`.
            protocol: the functions of the commands and answers.
            wall: the clock that is compared with the journal's; None: `clock`. While the wall clock
                is in doubt `clock` may go on by itself, and would hide what is to be repaired.
            cluster_id: the journal's; the replica must be of the same cluster or empty.
            executor: of one thread, for applying; None: the loop's own.

        Raises:
            RetryableError: the journal doesn't answer.
            NotFoundError: the replica is older than what the journal still holds.
            JournalOlderError: it is newer: drop it.
            OtherClusterError: it is of another cluster.
            CorruptDataError: an entry that this release doesn't know, or a damaged replica.
        """
        order = cls(
            journal,
            replica,
            machine,
            levels,
            protocol,
            identity=identity,
            cluster_id=cluster_id,
            clock=clock,
            wall=wall,
            random=random,
            executor=executor,
            settings=settings or ClusterOrderSettings(),
        )
        await order._check_cluster()
        await order._catch_up()
        return order

    async def start(
        self,
        *,
        on_applied: OnApplied[AnswerT, ChangeT] | None = None,
        on_answered: OnApplied[AnswerT, ChangeT] | None = None,
        on_stopped: OnStopped | None = None,
    ) -> None:
        """Follow on, and open a new epoch of this agent.

        Args:
            on_applied, on_answered: called on the event loop with each applied batch, in order;
                see `penstock.order.port`. The former moves the view.
            on_stopped: called once when this agent can't go on: FencedError (its epoch is over),
                JournalOlderError, CorruptDataError, FatalStorageError, NotFoundError, or what the
                journal refuses for good.
        Raises:
            RetryableError: the journal doesn't answer, or this host's clock is off.
            FencedError: other processes of this agent id keep opening epochs.
        """
        assert self._following is None, "started twice"
        self._on_applied = on_applied or self._on_applied
        self._on_answered = on_answered or self._on_answered
        self._on_stopped = on_stopped or self._on_stopped
        self._follower = self._new_follower(self.digest_pins)
        self._following = background.start(background.FOLLOW_JOURNAL, self._follow)
        try:
            await self._register()
        except BaseException as error:
            self._fail(error if isinstance(error, PenstockError) else self._closing())
            await self._end_following()
            raise

    # -- the order, as others see it -------------------------------------------------------------

    @property
    def position(self) -> int:
        """The last entry that is applied here."""
        return self._follower.position

    @property
    def time_ms(self) -> int:
        """Journal time there."""
        return self._follower.time_ms

    @property
    def shows_answers(self) -> bool:
        """Whether queries of the replica find all that was delivered: not where there was no space
        to commit it."""
        return self._replica.committed_position >= self._follower.position

    @property
    def head_confirmed_s(self) -> float:
        """Monotonic time before the last reading of the head that this replica has reached."""
        return self._follower.heads.confirmed_s

    @property
    def answering_since_s(self) -> float | None:
        """Monotonic time since which the journal answers without an error; None: it is away."""
        return self._follower.answering_since_s

    def submit(self, commands: Sequence[CommandT]) -> asyncio.Future[list[AnswerT]]:
        """Append commands with everything that waits; see `Order`.

        Raises (by the future): as `Order`; RetryableError also where this host's clock is off, or
            replicas differ.
        """
        return self._sender.submit(commands, refused=self._refusal(commands)).future

    async def commit(
        self, commands: Sequence[CommandT], *, timeout_s: float | None = None
    ) -> list[AnswerT]:
        """See `Committer`; None: the time that the settings allow."""
        call = self._sender.submit(commands, refused=self._refusal(commands))
        timeout_s = self._settings.commit_timeout_s if timeout_s is None else timeout_s
        done, _ = await asyncio.wait([call.future], timeout=timeout_s)
        if done:
            return call.future.result()
        detail = f"no answer in {timeout_s} s: {self._follower.away_detail or 'it is slow'}"
        if self._sender.withdraw(call):
            raise RetryableError("commit", f"agent {self.agent_id}", detail)
        raise InDoubtError("commit", f"agent {self.agent_id}", detail)

    def let_go(self, error: RetryableError) -> int:
        """Fail what waits and was never sent, beats excepted; how many calls it were."""
        return self._sender.let_go(error)

    def give_up_groups(self, error: RetryableError) -> None:
        """Fail what was sent of groups and not answered: this epoch is known to be over."""
        self._sender.give_up_groups(error)

    async def end_epoch(self, timeout_s: float) -> None:
        """See `EntrySender.end_epoch`: for an agent that ends in order, before `close`."""
        await self._sender.end_epoch(timeout_s)

    async def confirm_head(self, timeout_s: float | None = None) -> None:
        """Return once this replica is at a journal head that was read after the call.

        Raises:
            RetryableError: the journal doesn't answer, or not in time.
        """
        await self._follower.heads.confirm(
            self._settings.confirm_timeout_s if timeout_s is None else timeout_s
        )

    async def close(self) -> None:
        """Follow no more; close journal and replica. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._fail(self._closing())
        await self._end_following()
        await self._journal.close()
        self.digest_pins.close()
        self._replica.close()

    # -- the replica's upkeep; any thread --------------------------------------------------------

    @property
    def checkpoint_due(self) -> bool:
        """Enough was written that `checkpoint` is worth its cost."""
        return self._replica.checkpoint_due

    def checkpoint(self) -> int:
        """Move SQLite's WAL into its file. See `Replica`."""
        return self._replica.checkpoint()

    def snapshot(self, path: Path) -> SnapshotInfo:
        """Write a verified snapshot of the state to `path`."""
        return self._replica.snapshot(path)

    def digest(self) -> tuple[int, bytes]:
        """The state's position and digest. Reads the whole state."""
        return self._replica.digest()

    # -- opening ---------------------------------------------------------------------------------

    def _new_follower(
        self, pins: DigestPins[Outcome[AnswerT, ChangeT]] | None = None
    ) -> Follower[Outcome[AnswerT, ChangeT]]:
        return Follower(
            self._journal,
            self._replica,
            clock=self._wall,
            executor=self._executor,
            deliver=self._deliver,
            settings=self._settings.follower,
            on_reading=self._compare_clocks,
            pins=pins,
        )

    async def _catch_up(self) -> None:
        following = asyncio.get_running_loop().create_task(self._follower.run())
        confirming = asyncio.get_running_loop().create_task(
            self._follower.heads.confirm(self._settings.open_timeout_s)
        )
        raised: BaseException | None = None
        try:
            await asyncio.wait([following, confirming], return_when=asyncio.FIRST_COMPLETED)
            if following.done():
                following.result()
            await confirming
        except BaseException as error:
            raised = error
            raise
        finally:
            await end_tasks([following, confirming], Cause.FOLLOW_JOURNAL, raised=raised)
        await self._check_cluster()

    async def _check_cluster(self) -> None:
        """Also before a row is applied: another cluster's would look as if the journal had lost
        what the replica holds."""
        known = await self._follower.between(self._machine.cluster_id)
        if known and known != self.cluster_id:
            raise OtherClusterError(
                "open replica",
                str(self._replica.path),
                f"it is of cluster {known}, the journal of {self.cluster_id}",
                "give this agent a directory of its own",
                cluster_id=known,
            )

    def _next_epoch(self) -> int:
        # Nothing is applied meanwhile, so that the levels miss no change.
        return self._machine.next_epoch(self.agent_id, floor=epoch_floor(self._clock.now_ms()))

    def _new_sender(self) -> EntrySender[CommandT, AnswerT]:
        return EntrySender(
            self._journal,
            agent=self.agent_id,
            epoch=self.epoch,
            clock=self._clock,
            protocol=self._protocol,
            levels=self._levels,
            position=lambda: self._follower.position,
            appended=self._follower.nudge,
            stopped=self._sender_stopped,
            backoff=self._settings.backoff,
            doubted=self._follower.doubt,
            is_same=lambda: self._follower.is_same,
            wanted=self._follower.hurry,
        )

    async def _register(self) -> None:
        identity = self._identity
        for _ in range(_EPOCH_TRIES):
            epoch = await self._follower.between(self._next_epoch)
            await self._end_sender(self._closing())
            self.epoch = epoch
            self._sender = self._new_sender()
            token = self._random.token_bytes(_TOKEN_BYTES)
            commands = self._protocol.opening(identity, self.cluster_id, token)
            try:
                await self.commit(commands, timeout_s=self._settings.register_timeout_s)
            except FencedError as error:
                # Another process of this agent id was faster. The later epoch ends the earlier.
                heard(Cause.OPEN_EPOCH, error, logger, "another epoch is tried")
                continue
            if self._sender.failure is None:
                self._is_registered = True
                logger.info("agent %d has opened its epoch %d", self.agent_id, self.epoch)
                return
        raise FencedError(
            "register",
            f"agent {self.agent_id}",
            f"{_EPOCH_TRIES} epochs were taken by other processes",
            "does another agent have the same id?",
        )

    # -- following -------------------------------------------------------------------------------

    async def _follow(self) -> None:
        try:
            await self._follower.run()
        except PenstockError as error:
            self._stop(error)
        except Exception as error:
            # A bug: what this replica holds from here on is unknown.
            logger.exception("following the journal failed")
            self._stop(FatalStorageError("follow journal", f"agent {self.agent_id}", repr(error)))

    async def _end_following(self) -> None:
        await self._end_sender(self._closing())
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait([self._following])

    async def _end_sender(self, error: PenstockError) -> None:
        self._sender.fail(error)
        await self._sender.close()

    def _deliver(self, followed: list[AppliedEntry[AnswerT, ChangeT]]) -> None:
        """A batch was applied: first the view moves, then answers are given out."""
        applied = [entry for entry in followed if entry.body]
        own: list[tuple[int, AppliedEntry[AnswerT, ChangeT]]] = []
        for entry in applied:
            key = self._key_of(entry.body)
            if not self._levels.is_highest:
                self._levels.follow(entry.outcome.changes)
            if key.agent == self.agent_id and key.epoch == self.epoch:
                own.append((key.n, entry))
        if applied:
            self._on_applied(applied)
        for n, entry in own:
            self._sender.settle(n, entry)
        self._sender.pump()
        if applied:
            # Answers are given out by callbacks that are queued by now.
            loop = asyncio.get_running_loop()
            loop.call_soon(loop.call_soon, self._on_answered, applied)

    def _sender_stopped(self, error: PenstockError) -> None:
        # While an epoch is being opened, another process's is tried again with the next one.
        if self._is_registered or not isinstance(error, FencedError):
            self._stop(error)

    def _compare_clocks(self, reading: HeadReading) -> None:
        before = self._skew.skew_ms
        self._skew.judge(
            before_ms=reading.before_ms,
            stamp_ms=reading.head.stamp_ms,
            after_ms=reading.after_ms,
        )
        if self._skew.skew_ms:
            self._skewed_s = self._clock.monotonic_s()
        if bool(before) != bool(self._skew.skew_ms):
            logger.warning("%s", self._skew.describe() or "this host's clock is right again")

    @property
    def is_clock_doubted(self) -> bool:
        """Whether this host's clock and the journal's were apart not long ago, so that nothing may
        go by age: one of them is wrong, and may be wrong again."""
        apart_s = self._clock.monotonic_s() - self._skewed_s
        return apart_s * 1000 < self._settings.clock_believed_after_ms

    @property
    def clock_skew_ms(self) -> int:
        """The milliseconds that this host's clock is ahead of the journal's; 0: within bounds."""
        return self._skew.skew_ms

    def _refusal(self, commands: Sequence[CommandT]) -> RetryableError | None:
        """Return why these commands may not be written now; None: they may."""
        return (
            self._clock_error() or self.write_stop.refusal(commands) or self._full_error(commands)
        )

    @property
    def unstored_bytes(self) -> int:
        """Bytes of entries that are applied in memory alone, since the replica's disk is full."""
        return self._replica.uncommitted_bytes

    def _full_error(self, commands: Sequence[CommandT]) -> StorageFullError | None:
        """Return why no records are taken; None: they are. Beats and all else go on."""
        unstored_bytes = self.unstored_bytes
        if unstored_bytes <= UNSTORED_BYTES_MAX or not any(
            map(self._protocol.takes_space, commands)
        ):
            return None
        return StorageFullError(
            "append",
            f"agent {self.agent_id}",
            f"{unstored_bytes} bytes of entries wait for space on the disk of its replica, "
            f"{UNSTORED_BYTES_MAX} may",
            "free some space there; it goes on by itself",
        )

    def _clock_error(self) -> RetryableError | None:
        """Return why nothing may be written; None: it may."""
        detail = self._skew.describe()
        if not detail:
            return None
        return RetryableError("commit", f"agent {self.agent_id}", detail, "set the clock")

    # -- ending ----------------------------------------------------------------------------------

    def _stop(self, error: PenstockError) -> None:
        """The agent can't go on."""
        if self._failure is None:
            failure = error
            if isinstance(error, NotFoundError):
                # Rows were trimmed. Of what waits it says nothing: a producer would learn that
                # its topic is unknown.
                failure = InDoubtError("commit", f"agent {self.agent_id}", str(error))
            self._fail(failure)
            self._on_stopped(error)

    def _fail(self, error: PenstockError) -> None:
        if self._failure is None:
            self._failure = error
            self._sender.fail(error)

    def _closing(self) -> InDoubtError:
        return InDoubtError("commit", f"agent {self.agent_id}", "this agent is closing")
