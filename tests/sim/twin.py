"""What keeps two writers apart, followed by the plainest means."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from crc32c import crc32c

from penstock.order.entry_window import UNRESOLVED_MAX
from penstock.state.answers import Refused
from penstock.state.commands import (
    ClaimShard,
    ClaimWal,
    CommitOffsets,
    CommitRuns,
    CondemnObjects,
    DeleteGroups,
    DeleteOffsets,
    Fence,
    RegisterAgent,
    SaveGroup,
    SaveMembers,
    SaveShares,
    StoreSegment,
)
from penstock.state.entries import Entry
from penstock.state.pipeline_commands import CloseJob, CommitWrite, OpenJob, ReplaceRuns


class Twin:
    """What keeps two writers apart, remembered in the plainest way: from the answers alone."""

    def __init__(self, violate: Callable[[str, str], None]) -> None:
        self._violate = violate
        self._epochs: dict[int, tuple[int, int, bool]] = {}
        """By agent: epoch, last n, whether it was fenced."""
        self._wals: dict[int, tuple[int, int]] = {}
        self._shards: dict[int, int] = {}
        self._condemned: set[str] = set()
        self.named: set[str] = set()
        self.jobs: set[int] = set()
        """That are open."""
        self._commits: dict[int, int] = {}
        self._written: dict[str, int] = {}
        """By writer: its last batch."""

    def journaled(self, position: int, entry: Entry) -> None:
        """An entry, whatever became of it: an agent numbers no more than it may have under way."""
        epoch, last_n, _ = self._epochs.get(entry.agent, (0, -1, False))
        if entry.epoch == epoch and entry.n > last_n + UNRESOLVED_MAX:
            where = f"position {position}, agent {entry.agent} epoch {entry.epoch} n {entry.n}"
            self._violate("numbers-ran-away", f"{where} after {last_n}")

    def applied(self, position: int, entry: Entry, answers: list[Any]) -> None:
        """An entry that was applied."""
        where = f"position {position}, agent {entry.agent} epoch {entry.epoch} n {entry.n}"
        opens = any(
            isinstance(command, RegisterAgent) and command.agent == entry.agent
            for command in entry.commands
        )
        epoch, last_n, fenced = self._epochs.get(entry.agent, (0, -1, False))
        if entry.epoch > epoch:
            if not opens or entry.n != 0:
                self._violate("unopened-epoch", where)
            last_n, fenced = -1, False
        elif entry.epoch < epoch or fenced:
            self._violate("fenced-write", where)
        if entry.n != last_n + 1:
            self._violate("entry-order", f"{where} after {last_n}")
        self._epochs[entry.agent] = (entry.epoch, entry.n, fenced)
        for command, answer in zip(entry.commands, answers, strict=True):
            if not isinstance(answer, Refused):
                self._follow(where, entry, command, answer)

    def _follow(self, where: str, entry: Entry, command: Any, answer: Any) -> None:
        if isinstance(command, ReplaceRuns):
            if self._commits.get(command.job) == command.n:
                # It came again, and named nothing.
                return
            self._commits[command.job] = command.n
        for key in names_of(command, answer):
            self.named.add(key)
            if key in self._condemned:
                self._violate("condemned-named", f"{where}: {key}")
        match command:
            case OpenJob():
                if answer.job in self.jobs:
                    self._violate("job-twice", f"{where}: job {answer.job}")
                self.jobs.add(answer.job)
            case CloseJob():
                self.jobs.discard(command.job)
            case ReplaceRuns() if command.job not in self.jobs:
                self._violate("closed-job", f"{where}: job {command.job}")
            case CommitWrite() if not answer.repeated:
                if command.job not in self.jobs:
                    self._violate("closed-job", f"{where}: job {command.job}")
                if command.batch_id <= self._written.get(command.writer_id, -1):
                    self._violate("stored-twice", f"{where}: {command.writer_id}")
                self._written[command.writer_id] = command.batch_id
            case Fence():
                epoch, last_n, _ = self._epochs[command.agent]
                self._epochs[command.agent] = (epoch, last_n, True)
            case CommitRuns() if command.wal:
                if self._wals.get(command.wal >> 32) != (entry.agent, entry.epoch):
                    self._violate("wal-not-owned", f"{where}: WAL {command.wal >> 32}")
            case ClaimWal():
                self._wals[answer.wal_key] = (entry.agent, entry.epoch)
            case ClaimShard():
                self._shards[command.shard] = answer.shard_epoch
            case SaveGroup() | SaveMembers() | SaveShares() | CommitOffsets() | DeleteOffsets():
                self._check_shard(where, [command.group_id], command.shard_epoch)
            case DeleteGroups():
                self._check_shard(where, command.group_ids, command.shard_epoch)
            case CondemnObjects():
                self._condemned.update(answer.keys)
            case _:
                pass

    def shard_epoch(self, group_id: str) -> int:
        """Of a group's shard, as of its last claim."""
        return self._shards.get(crc32c(group_id.encode()) % 64, 0)

    def _check_shard(self, where: str, group_ids: list[str], shard_epoch: int) -> None:
        for group_id in group_ids:
            shard = crc32c(group_id.encode()) % 64
            if self._shards.get(shard, 0) != shard_epoch:
                self._violate("stale-shard", f"{where}: {shard_epoch} of {shard}")


def names_of(command: Any, answer: Any) -> list[str]:
    """The objects that a command which was applied has named."""
    match command:
        case CommitRuns() | StoreSegment():
            return [command.object_key] if command.object_key else []
        case ReplaceRuns():
            return [new.key for new in command.objects]
        case CommitWrite() if not answer.repeated:
            return [new.key for new in command.objects]
    return []
