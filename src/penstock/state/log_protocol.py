"""The log's commands and answers, as the order has to understand them."""

from collections.abc import Sequence
from typing import Final

from penstock.order.host.relaying import RelayedEntry, RelayProtocol
from penstock.order.protocol import AgentIdentity, CommandProtocol, EntryKey, EntryRefusal
from penstock.state.answers import AnyAnswer, Refusal, Refused, Relayed
from penstock.state.changes import Change
from penstock.state.commands import (
    AnyCommand,
    AskDigest,
    CommitOffsets,
    CommitRuns,
    CondemnObjects,
    DeleteGroups,
    DeleteOffsets,
    DeleteTopic,
    DrainAgent,
    ExpireProducers,
    Fence,
    ForgetObjects,
    Heartbeat,
    InitCluster,
    Noop,
    NoteLostHistory,
    RegisterAgent,
    Relay,
    RemoveAgent,
    ReportDigest,
    SaveGroup,
    SaveMembers,
    SaveShares,
    SetFeatureLevel,
    StoreSegment,
    TrimLog,
)
from penstock.state.entries import Entry, decode_entry, encode_entry
from penstock.state.entry_keys import entry_key
from penstock.state.packed_changes import (
    decode_answers,
    encode_answers,
    pack_changes,
    unpack_changes,
)
from penstock.state.pipeline_commands import CloseJob, DropTable, ExpireWriters
from penstock.state.transaction_commands import AddToTransaction, CommitToTransaction

_FREEING: Final = frozenset(
    {
        CloseJob,
        CondemnObjects,
        DeleteGroups,
        DeleteOffsets,
        DeleteTopic,
        DropTable,
        ExpireProducers,
        ExpireWriters,
        ForgetObjects,
        TrimLog,
    }
)
"""Commands that are steps towards deleting something."""
_OF_GROUPS: Final = frozenset(
    {
        SaveGroup,
        SaveMembers,
        SaveShares,
        DeleteGroups,
        CommitOffsets,
        DeleteOffsets,
        CommitToTransaction,
    }
)
NEVER_STOPPED: Final = frozenset(
    {
        AskDigest,
        DrainAgent,
        Fence,
        Heartbeat,
        InitCluster,
        Noop,
        NoteLostHistory,
        RegisterAgent,
        RemoveAgent,
        ReportDigest,
        SetFeatureLevel,
    }
)
"""They say who belongs to the cluster, end the stop, or keep more: none is of a client."""


def weigh(commands: Sequence[AnyCommand]) -> int:
    """Return how much of an entry they take; the cost of applying and the bytes grow with it."""
    return sum(_weigh(command) for command in commands)


def _weigh(command: AnyCommand) -> int:
    match command:
        case CommitRuns():
            return 1 + sum(1 + len(run.batches) // 6 for run in command.runs)
        case StoreSegment():
            return 1 + sum(1 + len(run.runs) // 4 for run in command.runs)
        case TrimLog() | ExpireProducers():
            return 1 + len(command.items) // 2
        case CommitOffsets() | CommitToTransaction():
            return 1 + len(command.offsets)
        case AddToTransaction():
            return 1 + len(command.partitions) + len(command.groups)
        case DeleteOffsets():
            return 1 + len(command.items)
        case SaveMembers() | SaveShares():
            return 1 + len(command.rows) + len(command.removed)
        case DeleteGroups():
            return 1 + len(command.group_ids)
        case _:
            return 1


def _encode(key: EntryKey, stamp_ms: int, commands: list[AnyCommand]) -> bytes:
    agent, epoch, n = key
    return encode_entry(Entry(agent=agent, epoch=epoch, n=n, stamp_ms=stamp_ms, commands=commands))


def _opening(identity: AgentIdentity, cluster_id: str, token: bytes) -> list[AnyCommand]:
    register = RegisterAgent(
        agent=identity.agent_id,
        labels=identity.labels,
        software=identity.software,
        endpoint=identity.endpoint,
        peer=identity.peer,
        level_max=identity.level_max,
        token=token,
    )
    return [InitCluster(cluster_id=cluster_id), register] if cluster_id else [register]


def _ending(agent: int, epoch: int) -> AnyCommand:
    return Fence(agent=agent, epoch=epoch, seen_position=0)


def _refusal(answer: AnyAnswer) -> EntryRefusal | None:
    if not isinstance(answer, Refused):
        return None
    is_fenced = answer.reason is Refusal.FENCED_AGENT
    return EntryRefusal(answer.reason.name, answer.detail, is_fenced)


def _relay(body: bytes) -> AnyCommand:
    entry = decode_entry(body, position=0)
    return Relay(
        agent=entry.agent,
        epoch=entry.epoch,
        n=entry.n,
        commands=entry.commands,
        stamp_ms=entry.stamp_ms,
    )


def _relayed(answer: AnyAnswer) -> RelayedEntry[AnyAnswer] | EntryRefusal:
    refusal = _refusal(answer)
    if refusal is not None:
        return refusal
    assert isinstance(answer, Relayed), answer
    return RelayedEntry(answer.standing, answer.answers)


LOG_PROTOCOL: Final[CommandProtocol[AnyCommand, AnyAnswer]] = CommandProtocol(
    encode=_encode,
    key_of=entry_key,
    weigh=weigh,
    opening=_opening,
    ending=_ending,
    refusal=_refusal,
    is_beat=lambda command: type(command) is Heartbeat,
    is_given_up=lambda command: type(command) in _OF_GROUPS,
    frees_space=lambda command: type(command) in _FREEING,
    takes_space=lambda command: type(command) is CommitRuns,
    is_never_stopped=lambda command: type(command) in NEVER_STOPPED,
)
LOG_RELAYING: Final[RelayProtocol[AnyCommand, AnyAnswer, Change]] = RelayProtocol(
    relay=_relay,
    relayed=_relayed,
    encode_answers=encode_answers,
    decode_answers=decode_answers,
    pack_changes=pack_changes,
    unpack_changes=unpack_changes,
)
