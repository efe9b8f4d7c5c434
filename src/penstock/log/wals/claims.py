"""WAL directories in a cluster: their ids, claiming one, and taking over that of a fenced agent.

A directory has an id, 16 random bytes in a file that also names its cluster
(`penstock.log.wals.names`), and the journal gives it a small key at its first claim. After a claim
was applied here, no entry of an earlier owner can name runs in it any more: so what the state names
then is all that there is, and what the files hold beyond it was never acknowledged.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from penstock.log.wals.names import (
    WalName,
    new_wal_name,
    read_wal_id,
    read_wal_name,
    refuse_others_wal,
    write_wal_name,
)
from penstock.model.errors import ConflictError, RetryableError
from penstock.ports.device import Device
from penstock.ports.random import Random
from penstock.state.answers import Refusal, Refused, WalClaimed
from penstock.state.commands import ClaimWal
from penstock.state.order_types import Committer
from penstock.state.read.queries import Queries
from penstock.state.rows import StoredRun
from penstock.wal import DamagedStretch, RecoveryReport, WalReader, WalWriter
from penstock.wal.recovery import check_named, find_files

T = TypeVar("T")

logger = logging.getLogger(__name__)


class BeingTakenOverError(RetryableError):
    """Another live agent owns this agent's WAL directory and has not emptied it yet."""


class WalAwayError(RetryableError):
    """The volume of a WAL in which records lie can't be read now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WalFolder:
    """The place and size of an agent's WAL. `random` makes the id of a new WAL."""

    device: Device
    random: Random
    file_bytes: int
    bytes_max: int
    fsync: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedWal:
    """A claimed WAL, ready to be written. `runs` lie in it from before, some perhaps damaged: see
    `writer.recovery`."""

    wal_key: int
    writer: WalWriter
    reader: WalReader
    runs: list[StoredRun]


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenWal:
    """Another agent's WAL, claimed and checked, to be read and emptied. It gets no more frames.
    `damaged`: what of it the journal names and isn't right."""

    wal_key: int
    reader: WalReader
    runs: list[StoredRun]
    damaged: Sequence[DamagedStretch]
    active_generation: int = 1 << 32
    """Above every generation: all files are closed. Implements the uploader's end of a writer."""

    def release(self, generation: int) -> None:
        """The files stay for the agent of that directory: it finds them free at its next claim."""


async def claim_own_wal(
    folder: WalFolder, *, committer: Committer, queries: Callable[[], Queries], pool: Executor
) -> ClaimedWal:
    """Claim this agent's directory in its epoch, and recover it.

    A WAL that another agent took over and has emptied becomes a new WAL: its old id stays the other
    agent's for as long as that lives. Only this agent writes there, whichever agent owns the WAL.

    Raises:
        OtherClusterError: another cluster's records lie there.
        RetryableError: the journal doesn't answer.
        BeingTakenOverError: another live agent owns the WAL, and records still lie in it.
    """
    wal_id = await _in_pool(pool, lambda: _wal_id_of_own(folder, queries()))
    try:
        claimed = await _claim(wal_id, committer)
    except ConflictError as error:
        if not await _in_pool(pool, lambda: _is_emptied(queries(), wal_id)):
            raise BeingTakenOverError(
                error.operation,
                error.subject,
                error.detail,
                "it is being taken over; try again once it is empty",
            ) from error
        cluster_id = await _in_pool(pool, lambda: queries().cluster_id())
        wal_id = await _in_pool(
            pool, partial(new_wal_name, folder.device, cluster_id, folder.random)
        )
        claimed = await _claim(wal_id, committer)

    def recover() -> ClaimedWal:
        runs = queries().wal_runs(claimed.wal_key)
        writer = WalWriter.open(
            folder.device,
            file_bytes=folder.file_bytes,
            bytes_max=folder.bytes_max,
            named=named_ends(runs),
            last_generation=claimed.last_generation,
            fsync=folder.fsync,
        )
        lost = writer.recovery.lost
        if lost and queries().lost_histories():
            logger.error(
                "the journal names %d WAL files that are not there, and has lost rows: if those had"
                " moved the records to segments, penstock repair --history names the segments",
                len(lost),
            )
        return ClaimedWal(
            wal_key=claimed.wal_key,
            writer=writer,
            reader=WalReader(folder.device, lost=lost),
            runs=runs,
        )

    return await _in_pool(pool, recover)


def _wal_id_of_own(folder: WalFolder, queries: Queries) -> bytes:
    """The id of this agent's directory, which names this cluster from now on.

    Raises:
        OtherClusterError: another cluster's records lie there.
    """
    device, cluster_id = folder.device, queries.cluster_id()
    name = read_wal_name(device)
    if name is not None and name.cluster_id == cluster_id:
        return name.wal_id
    if name is not None and not name.cluster_id and is_known_wal(queries, name.wal_id):
        # An older release's file, which names no cluster: the journal knows the id, which is
        # random.
        write_wal_name(device, WalName(name.wal_id, cluster_id))
        return name.wal_id
    refuse_others_wal(device, cluster_id, of=name.cluster_id if name is not None else "")
    return new_wal_name(device, cluster_id, folder.random)


def is_known_wal(queries: Queries, wal_id: bytes) -> bool:
    """Whether an agent of this cluster ever claimed a WAL."""
    return any(wal.wal_id == wal_id for wal in queries.wals())


async def take_over_wal(
    device: Device,
    wal_id: bytes,
    *,
    committer: Committer,
    queries: Callable[[], Queries],
    pool: Executor,
) -> TakenWal:
    """Claim a WAL of an agent that was fenced, and find what is named in it.

    Damage ends no takeover here: the claim stands, so that no other agent could serve what is
    whole. Each run is checked when it is read. Nothing is written there: the fenced owner may be a
    process that was only stopped, and wakes. What it then writes lies behind what is named, or in
    files of which nothing is.

    Raises:
        ConflictError: its owner isn't fenced.
        RetryableError: the journal doesn't answer.
        WalAwayError: it was claimed, and its volume can't be read.
    """
    claimed = await _claim(wal_id, committer)

    def check() -> TakenWal:
        runs = queries().wal_runs(claimed.wal_key)
        report = RecoveryReport()
        if not runs:
            # And its agent may have made the directory another WAL by now.
            return taken(runs, report)
        try:
            # A volume that was detached looks like an empty folder, which is not damage.
            is_there = read_wal_id(device) == wal_id
            if is_there:
                report = check_named(device, named_ends(runs), find_files(device))
                is_there = not report.lost or read_wal_id(device) == wal_id
        except OSError as error:
            raise WalAwayError("take over WAL", wal_id.hex(), str(error)) from error
        if not is_there:
            raise WalAwayError(
                "take over WAL",
                wal_id.hex(),
                "it isn't in its directory any more",
                "bring the volume back, or name the directory where it is now",
            )
        return taken(runs, report)

    def taken(runs: list[StoredRun], report: RecoveryReport) -> TakenWal:
        return TakenWal(
            wal_key=claimed.wal_key,
            runs=runs,
            reader=WalReader(device, lost=report.lost),
            damaged=report.damaged,
        )

    return await _in_pool(pool, check)


def named_ends(runs: list[StoredRun]) -> dict[int, int]:
    """Return, by file generation, the end in bytes of the last run that the journal names in it."""
    ends: dict[int, int] = {}
    for run in runs:
        end = run.position + run.length
        ends[run.file_generation] = max(ends.get(run.file_generation, 0), end)
    return ends


def _is_emptied(queries: Queries, wal_id: bytes) -> bool:
    """Whether nothing is named in a WAL. Only its owner could change that, and a claim that was
    refused for another's sake says that this agent isn't it."""
    keys = [wal.wal_key for wal in queries.wals() if wal.wal_id == wal_id]
    return bool(keys) and not any(queries.wal_generations(key) for key in keys)


async def _claim(wal_id: bytes, committer: Committer) -> WalClaimed:
    (answer,) = await committer.commit([ClaimWal(wal_id=wal_id)])
    if isinstance(answer, Refused) and answer.reason is Refusal.LEVEL_NOT_ON:
        # It rises by itself once every agent knows it: of a new cluster within a moment.
        raise RetryableError("claim WAL", wal_id.hex(), answer.detail, "wait for the level")
    if isinstance(answer, Refused):
        raise ConflictError("claim WAL", wal_id.hex(), f"{answer.reason.name}: {answer.detail}")
    assert isinstance(answer, WalClaimed), answer
    return answer


async def _in_pool(pool: Executor, work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(pool, work)
