"""The form in which answers are state: a refusal's reason, never its sentence.

A sentence is for the person who reads it, and a later release words it better. In the state it
would make one replica differ from another that does the same. So from feature level 4 on a refusal
is stored without its detail, and the answer to a repeated entry holds the sentence of its reason.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from penstock.state.answers import (
    AnyAnswer,
    Refusal,
    Refused,
    Relayed,
    decode_answers,
    encode_answers,
)

SENTENCES: Final[dict[Refusal, str]] = {
    Refusal.UNKNOWN_TOPIC: "there is no such topic",
    Refusal.UNKNOWN_PARTITION: "there is no such partition",
    Refusal.TOPIC_EXISTS: "a topic of this name exists",
    Refusal.INVALID_PARTITIONS: "the topic cannot have so many partitions",
    Refusal.OUT_OF_ORDER_SEQUENCE: "the sequence is not the producer's next one",
    Refusal.FENCED_PRODUCER: "the producer has a later epoch",
    Refusal.OFFSET_OUT_OF_RANGE: "the offset is not in the log",
    Refusal.UNKNOWN_GROUP: "there is no such group",
    Refusal.GROUP_NOT_EMPTY: "the group has members",
    Refusal.FENCED_AGENT: "the agent's epoch is over",
    Refusal.STALE_SHARD: "another agent has the shard of groups",
    Refusal.OBJECT_IN_USE: "the object holds records of the log",
    Refusal.OBJECT_CONDEMNED: "the object is being deleted",
    Refusal.OBJECT_EXISTS: "the object was named before",
    Refusal.GROUP_SUBSCRIBED: "the group is subscribed to the topic",
    Refusal.OUT_OF_ORDER_ENTRY: "the entry is not the agent's next one",
    Refusal.UNKNOWN_AGENT: "there is no such agent",
    Refusal.AGENT_IS_ALIVE: "the agent is alive",
    Refusal.WAL_NOT_OWNED: "the WAL belongs to another agent or epoch",
    Refusal.WAL_IN_USE: "records of the log lie in the WAL",
    Refusal.LEVEL_NOT_KNOWN: "an agent does not know the feature level",
    Refusal.LEVEL_NOT_ON: "the feature level is not on",
    Refusal.UNKNOWN_JOB: "the job was closed, or never opened",
    Refusal.JOB_IS_ALIVE: "the job was renewed",
    Refusal.JOB_TOO_OLD: "the job has reached its greatest age",
    Refusal.OUT_OF_ORDER_COMMIT: "the commit is not the job's next one",
    Refusal.INPUT_CHANGED: "the runs to replace have changed",
    Refusal.INVALID_REPLACEMENT: "the new runs do not fit those that they replace",
    Refusal.STALE_WRITE: "a later batch of the writer is committed",
    Refusal.WRITER_IN_USE: "the writer has written from another checkpoint",
    Refusal.INVALID_OBJECT: "an object is not the job's own, or is listed twice",
    Refusal.MALFORMED: "the command's numbers or texts are not valid",
    Refusal.UNKNOWN_HISTORY: "there is no such lost history",
    Refusal.HISTORY_GREW: "more of the lost history was found",
    Refusal.CLOCKS_DISAGREE: "the clocks do not agree on the time",
    Refusal.PRODUCER_ID_MISMATCH: "the transactional id has no such producer id",
    Refusal.PLAIN_IN_TRANSACTION: "the producer has a transaction open there",
    Refusal.INVALID_TRANSACTION_STATE: "the transaction is not ongoing, or not with this",
    Refusal.TRANSACTION_TOO_LARGE: "the transaction has as much as one may have",
    Refusal.STALE_CONNECTION: "the connection is older than the transaction",
    Refusal.OTHER_CONNECTION: "offsets came by another connection, which may be a late one",
    Refusal.UNKNOWN_CREDENTIAL: "the user has no such credential",
}
"""Sentences by reason, for answers read from the state. Rewording one changes no state."""


def sentence(reason: int) -> str:
    """Return what a refusal says that was stored as its reason alone."""
    try:
        return SENTENCES[Refusal(reason)]
    except (KeyError, ValueError):
        return f"reason {reason}"


def encode_stored(answers: Sequence[AnyAnswer]) -> bytes:
    """Answers as the state holds them from feature level 4 on."""
    return encode_answers(_without_sentences(answers))


def decode_stored(body: bytes) -> list[AnyAnswer]:
    """Answers of the state; a refusal without a sentence gets that of its reason."""
    return with_sentences(decode_answers(body))


def restate(body: bytes) -> bytes:
    """Stored answers of any level, in the form of level 4."""
    return encode_stored(decode_answers(body))


def with_sentences(answers: Iterable[AnyAnswer]) -> list[AnyAnswer]:
    """Fill in what the state does not hold."""
    return [_with_sentence(answer) for answer in answers]


def as_if_stored(answers: Sequence[AnyAnswer]) -> list[AnyAnswer]:
    """Return what `decode_stored` gives of these answers: a repeat must be answered alike, whether
    or not the first answers have been written."""
    return with_sentences(_without_sentences(answers))


def _with_sentence(answer: AnyAnswer) -> AnyAnswer:
    if isinstance(answer, Refused) and not answer.detail:
        return Refused(answer.reason, sentence(answer.reason))
    if isinstance(answer, Relayed):
        return Relayed(answer.standing, with_sentences(answer.answers))
    return answer


def _without_sentences(answers: Sequence[AnyAnswer]) -> list[AnyAnswer]:
    return [_without_sentence(answer) for answer in answers]


def _without_sentence(answer: AnyAnswer) -> AnyAnswer:
    if isinstance(answer, Refused):
        return Refused(answer.reason)
    if isinstance(answer, Relayed):
        return Relayed(answer.standing, _without_sentences(answer.answers))
    return answer
