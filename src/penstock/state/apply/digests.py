"""Applying commands about digests: which one is asked for, and what each agent found.

The state holds the last round alone: a row per agent that was live when it was asked. What follows
from the answers is each agent's own matter (`penstock.state.digest_plan`).
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from penstock.state.answers import AnyAnswer, Done, Refusal, Refused
from penstock.state.apply.context import ApplyContext
from penstock.state.changes import DigestAsked, DigestTold
from penstock.state.commands import AskDigest, ReportDigest
from penstock.state.digest_plan import DigestRound
from penstock.state.numbers import is_number
from penstock.state.state_digest import (
    DIGEST_BYTES,
    DIGESTED_TABLES_MAX,
    TABLE_NAME_CHARACTERS_MAX,
    StateDigest,
)

SELECT_DIGESTS: Final = "SELECT agent, epoch, position, answer FROM digests ORDER BY agent"
_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(StateDigest).decode


def ask_digest(context: ApplyContext, command: AskDigest) -> AnyAnswer:
    """Begin a round, in place of the last."""
    execute = context.tables.execute
    (last,) = execute("SELECT max(position) FROM digests").fetchone()
    if (last or 0) != command.seen_position:
        return Done()
    execute("DELETE FROM digests")
    agents = [
        (agent.agent_id, agent.epoch)
        for _, agent in sorted(context.tables.cluster.agents.items())
        if agent.live
    ]
    context.tables.executemany(
        "INSERT INTO digests VALUES (?, ?, ?, x'')",
        ((agent_id, epoch, context.position) for agent_id, epoch in agents),
    )
    context.asks_digest = True
    context.changes.append(DigestAsked(position=context.position, agents=agents))
    return Done()


def report_digest(context: ApplyContext, command: ReportDigest) -> AnyAnswer:
    """Keep an agent's answer to the round."""
    fault = _fault(command)
    if fault:
        return Refused(Refusal.MALFORMED, fault)
    told = context.tables.execute(
        "UPDATE digests SET answer = ? WHERE agent = ? AND epoch = ? AND position = ?",
        (_encode(command.digest), context.agent, context.epoch, command.position),
    ).rowcount
    if told:
        context.changes.append(DigestTold(agent_id=context.agent, digest=command.digest))
    return Done()


def round_of_rows(rows: Iterable[tuple[int, int, int, bytes]]) -> DigestRound:
    """The last round, of the rows of `SELECT_DIGESTS`."""
    found = DigestRound()
    for agent, epoch, position, answer in rows:
        found.position = position
        found.epochs[agent] = epoch
        if answer:
            found.answers[agent] = _decode(answer)
    return found


def _fault(command: ReportDigest) -> str:
    digest = command.digest
    if not is_number(command.position):
        return f"position {command.position}"
    if len(digest.tables) > DIGESTED_TABLES_MAX:
        return f"{len(digest.tables)} tables, at most are {DIGESTED_TABLES_MAX}"
    for name, found in digest.tables:
        if len(name) > TABLE_NAME_CHARACTERS_MAX or len(found) != DIGEST_BYTES:
            return f"a name of {len(name)} characters, a digest of {len(found)} bytes"
    return ""
