"""An agent's own journal: commands in, durable and applied, answers out. Used by the commit lane.

A `Replica` of a state machine under one agent's identity: it numbers the agent's entries,
stamps them, and turns a refused entry into an error.

An entry is made durable in one of two ways: `append` syncs it in the journal files (without them,
in the database); `append_written` has a WAL frame hold it, and `commit` brings the database there
behind. What the database lacks after a power cut is given to `open` again.
"""

import base64
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, Protocol, TypeVar

from penstock.model.epochs import epoch_floor
from penstock.model.errors import FatalStorageError, FencedError
from penstock.model.ids import AgentId
from penstock.order.outcome import Outcome, Standing
from penstock.order.port import AppliedEntry
from penstock.order.protocol import (
    AgentIdentity,
    CommandProtocol,
    EntryKey,
    OrderedMachine,
)
from penstock.ports.clock import Clock
from penstock.ports.random import Random
from penstock.replica.journal_files import JournalFiles
from penstock.replica.replica import Replica
from penstock.replica.snapshot import JournalEntry, SnapshotInfo

CLUSTER_ID_BYTES: Final = 16
REPLAY_ENTRIES_MAX: Final = 1000
REPLAY_BYTES_MAX: Final = 4 << 20
"""Bounds of one transaction, when entries are applied again."""
_AGENT_IDS: Final = (1 << 31) - 1
_LOCAL_AGENT: Final = "agent"

CommandT = TypeVar("CommandT")
CommandT_co = TypeVar("CommandT_co", covariant=True)
AnswerT = TypeVar("AnswerT")
ChangeT = TypeVar("ChangeT")


class OwnedMachine(OrderedMachine, Protocol[CommandT_co]):
    """The state of a journal that one agent writes."""

    @property
    def format_version(self) -> int:
        """See `penstock.replica.StateMachine`."""
        ...

    def only_agent(self) -> int | None:
        """The id of the one agent that the state knows; None: it knows none, or several."""
        ...

    def raising(self, level: int) -> Sequence[CommandT_co]:
        """The commands that bring the feature level up to `level`; none if it is there."""
        ...


@dataclass(frozen=True, slots=True)
class Prepared:
    """The next entry, encoded."""

    body: bytes
    stamp_ms: int
    frees_space: bool


class LocalJournal(Generic[CommandT, AnswerT, ChangeT]):
    """An agent's end of the journal. `append` and `append_written` by one thread at a time, that
    of the commit lane; all else by any."""

    def __init__(
        self,
        replica: Replica[Outcome[AnswerT, ChangeT]],
        protocol: CommandProtocol[CommandT, AnswerT],
        *,
        clock: Clock,
        cluster_id: str,
        agent_id: int,
    ) -> None:
        """Use `open`."""
        self._protocol = protocol
        self._encode = protocol.encode
        self._frees_space = protocol.frees_space
        self._replica = replica
        self._clock = clock
        self._next_n = 0
        self.cluster_id = cluster_id
        self.agent_id = agent_id
        self.epoch = 0
        self.rebuilt_because = ""
        """Why the database was made again as it was opened; empty: it was not."""
        self.found_ms = replica.time_ms
        """Journal time before anything of this epoch; 0: the journal is new."""

    @classmethod
    def open(
        cls,
        replica: Replica[Outcome[AnswerT, ChangeT]],
        machine: OwnedMachine[CommandT],
        protocol: CommandProtocol[CommandT, AnswerT],
        *,
        clock: Clock,
        random: Random,
        agent_id: int | None = None,
        labels: dict[str, str] | None = None,
        software: str = "",
        endpoint: str = "",
        peer: str = "",
        level: int,
        entries: Callable[[int], Iterable[JournalEntry]] | None = None,
        check_cluster: Callable[[str], None] | None = None,
        journal: JournalFiles | None = None,
    ) -> "LocalJournal[CommandT, AnswerT, ChangeT]":
        """Take over the journal of `replica`, and register a new epoch of this agent.

        Args:
            replica: the order's from now on; closed with it, and if this fails.
            machine: what `replica` applies by, read here as long as nothing else is applied.
            protocol: the functions of the commands and answers.
            random: gives a new file's cluster id and agent id.
            agent_id: in [1, 2^31); None: the one that the file was made with.
            labels, software, endpoint, peer: what the agent says of itself to others.
            level: the newest feature level that this agent knows; the journal's is raised to this
                level, unless an agent of it that isn't fenced knows less.
            entries: gives what is durable past a position and may not be in the database.
            check_cluster: raises if the entries aren't of the cluster with this id; called before
                they are asked for, and again when they are applied if there was no cluster before
                (the id is empty where there is none yet).
            journal: keeps the entries in files next to the database; is closed with the order.

        Raises:
            InvalidRequestError: another program's file, or a newer release's.
            CorruptDataError: the file is damaged.
            StorageFullError: no space.
        """
        try:
            known = machine.cluster_id()
            if journal is not None and known:
                journal.cluster_id = known
            if check_cluster is not None and known:
                check_cluster(known)
            # First, since the database may lag: ids and levels below are those of the newest state.
            if entries is not None:
                _apply_again(replica, entries(replica.position))
            if check_cluster is not None and not known:
                check_cluster(machine.cluster_id())
            if agent_id is None:
                known_id = journal.agent_id if journal is not None else 0
                agent_id = _agent_id(replica, machine, random, known_id)
            if replica.local(_LOCAL_AGENT) != agent_id:
                replica.set_local(_LOCAL_AGENT, agent_id)
            if journal is not None:
                journal.agent_id, journal.format_version = agent_id, machine.format_version
            cluster_id = machine.cluster_id()
            new_id = "" if cluster_id else new_cluster_id(random)
            cluster_id = cluster_id or new_id
            if journal is not None:
                journal.cluster_id = cluster_id
            identity = AgentIdentity(
                agent_id=agent_id,
                labels=labels or {},
                software=software,
                endpoint=endpoint,
                peer=peer,
                level_max=level,
            )
            commands = [*protocol.opening(identity, new_id, b""), *machine.raising(level)]
            order = cls(replica, protocol, clock=clock, cluster_id=cluster_id, agent_id=agent_id)
            # The floor is the clock's: a database that was restored from an older copy may not know
            # the epochs that were given out after the copy.
            order.epoch = machine.next_epoch(agent_id, floor=epoch_floor(clock.now_ms()))
            order.append(commands)
        except BaseException:
            replica.close()
            raise
        return order

    @property
    def position(self) -> int:
        """The last applied entry's position."""
        return self._replica.position

    @property
    def base_position(self) -> int:
        """The least position of a snapshot that the kept journal leads on from; 0: it begins at
        its first entry, or is in the database."""
        return self._replica.base_position

    @property
    def time_ms(self) -> int:
        """Journal time there."""
        return self._replica.time_ms

    @property
    def committed_position(self) -> int:
        """The position up to which readers of the database see the state."""
        return self._replica.committed_position

    @property
    def is_busy(self) -> bool:
        """Whether another thread commits just now, so that an append would wait."""
        return self._replica.is_busy

    @property
    def uncommitted_count(self) -> int:
        """Entries that `commit` would commit; `uncommitted_bytes`: of their bodies."""
        return self._replica.uncommitted_count

    @property
    def uncommitted_bytes(self) -> int:
        """See `uncommitted_count`."""
        return self._replica.uncommitted_bytes

    def append(self, commands: Sequence[CommandT]) -> AppliedEntry[AnswerT, ChangeT]:
        """Journal commands as one entry and apply them: durable without a WAL frame.

        Raises:
            StorageFullError: no space; nothing was applied, a later append may succeed.
            FatalStorageError: what is durable is unknown; the process must end.
            FencedError: a newer epoch of this agent exists.
        """
        return self._append(self.prepare(commands), None)

    def prepare(self, commands: Sequence[CommandT]) -> Prepared:
        """Encode the next entry; nothing is done yet, so that another may be prepared instead."""
        stamp_ms = self._clock.now_ms()
        key = EntryKey(self.agent_id, self.epoch, self._next_n)
        body = self._encode(key, stamp_ms, list(commands))
        return Prepared(body, stamp_ms, all(map(self._frees_space, commands)))

    def append_written(
        self, entry: Prepared, write: Callable[[int, int], None]
    ) -> AppliedEntry[AnswerT, ChangeT]:
        """Apply an entry that `write` makes durable, given its position and journal time.

        The database gets it at the next `commit`.

        Raises:
            StorageFullError: no space here, or `write` raised it: nothing was applied.
            FatalStorageError: what is durable is unknown; the process must end.
            FencedError: a newer epoch of this agent exists.
        """
        return self._append(entry, write)

    def _append(
        self, entry: Prepared, write: Callable[[int, int], None] | None
    ) -> AppliedEntry[AnswerT, ChangeT]:
        applied = self._replica.append(
            entry.body, stamp_ms=entry.stamp_ms, frees_space=entry.frees_space, write=write
        )
        outcome = applied.outcome
        if outcome.standing is Standing.REPEATED:
            # No entry is sent again here, so n and the journal have come apart: answers would
            # be another entry's.
            raise FatalStorageError(
                "append", f"agent {self.agent_id}", f"entry {self._next_n} was applied before"
            )
        if outcome.standing is Standing.REFUSED:
            refusal = self._protocol.refusal(outcome.answers[0]) if outcome.answers else None
            detail = refusal.detail if refusal is not None else "refused"
            raise FencedError("append", f"agent {self.agent_id}", detail, "restart this agent")
        self._next_n += 1
        return applied

    def commit(self) -> int:
        """Let readers of the database see all that was applied; from any thread.

        Returns: the position up to which they do.

        Raises:
            StorageFullError: no space; a later call tries again.
            FatalStorageError: the process must end.
        """
        return self._replica.commit()

    @property
    def checkpoint_due(self) -> bool:
        """Enough was written that `checkpoint` is worth its syncs."""
        return self._replica.checkpoint_due

    def sync(self) -> int:
        """Make durable without the WAL all that was applied, by one sync; any thread. Returns the
        position up to which that is so. See `Replica.sync`."""
        return self._replica.sync()

    def checkpoint(self) -> int:
        """Make the database durable and move SQLite's WAL into its file, from a thread other than
        the lane's. Returns the position up to which that is so. See `Replica`."""
        return self._replica.checkpoint()

    def snapshot(self, path: Path) -> SnapshotInfo:
        """Write a verified snapshot of the state to `path`; from any thread."""
        return self._replica.snapshot(path)

    def trim_journal(self, snapshot: SnapshotInfo, *, until: int | None = None) -> int:
        """Note a verified, stored snapshot; delete entries that the one before it covers, and none
        past `until`.

        From any thread; bounded, so call until it returns 0 (the number deleted).
        """
        return self._replica.trim_journal(snapshot, until=until)

    def journal_after(self, position: int) -> Iterator[JournalEntry]:
        """Entries past a position: with a snapshot, all it takes to make this state again."""
        return self._replica.journal_after(position)

    def digest(self) -> tuple[int, bytes]:
        """The state's position and digest; from any thread. Reads the whole state."""
        return self._replica.digest()

    def close(self) -> bool:
        """Close; idempotent. Returns whether the database is in good order: see `Replica`."""
        return self._replica.close()


def _apply_again(
    replica: Replica[Outcome[AnswerT, ChangeT]], entries: Iterable[JournalEntry]
) -> None:
    """Bring the database to where the journal is."""
    for entry in entries:
        replica.apply(entry.body, stamp_ms=entry.time_ms, position=entry.position)
        if (
            replica.uncommitted_count >= REPLAY_ENTRIES_MAX
            or replica.uncommitted_bytes >= REPLAY_BYTES_MAX
        ):
            replica.commit()


def _agent_id(
    replica: Replica[Outcome[AnswerT, ChangeT]],
    machine: OwnedMachine[CommandT],
    random: Random,
    known_id: int,
) -> AgentId:
    """The id this file's agent has had (`known_id`: by its journal files); else the only one there
    is (a restore); else a new one."""
    kept = known_id or replica.local(_LOCAL_AGENT)
    if isinstance(kept, int):
        return AgentId(kept)
    only = machine.only_agent()
    if only is not None:
        return AgentId(only)
    return AgentId(1 + random.below(_AGENT_IDS))


def new_cluster_id(random: Random) -> str:
    """22 characters, as Kafka's: 16 random bytes in base64url without padding."""
    # A leading "-" would read as an option on a command line; Kafka avoids it likewise.
    while True:
        text = base64.urlsafe_b64encode(random.token_bytes(CLUSTER_ID_BYTES)).rstrip(b"=").decode()
        if not text.startswith("-"):
            return text
