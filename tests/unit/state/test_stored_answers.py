"""Replicated state holds reasons: rewording a message changes no digest, from level 4 on."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from penstock.order.outcome import Standing
from penstock.replica.replica import Replica
from penstock.state.answers import (
    AnyAnswer,
    Done,
    Refusal,
    Refused,
    Relayed,
    decode_answers,
    encode_answers,
)
from penstock.state.apply import jobs as apply_jobs
from penstock.state.apply import topics as apply_topics
from penstock.state.apply.machine import LogMachine
from penstock.state.commands import (
    DeleteTopic,
    Heartbeat,
    InitCluster,
    RegisterAgent,
    Relay,
    SetFeatureLevel,
)
from penstock.state.entries import Entry, encode_entry
from penstock.state.pipeline_commands import OpenJob, OutputObject, ReplaceRuns
from penstock.state.schema import INTEGRITY_LEVEL, PIPELINE_LEVEL
from penstock.state.stored_answers import (
    SENTENCES,
    as_if_stored,
    decode_stored,
    encode_stored,
    restate,
    sentence,
)

REFUSED = DeleteTopic(topic_id=b"0" * 16)
BAD_OBJECTS = [OutputObject(key="not of the job", size_bytes=1)]


class History:
    """One agent's entries, applied to a replica of their own."""

    def __init__(self, path: Path, *, commits_each: bool = True) -> None:
        self.replica = Replica.open(path, LogMachine(), fsync=False, keeps_journal=False)
        self.path = path
        self._commits_each = commits_each
        self._n = -1

    def send(self, *commands: Any, again: bool = False) -> list[AnyAnswer]:
        if not again:
            self._n += 1
        entry = Entry(agent=1, epoch=1, n=self._n, stamp_ms=0, commands=list(commands))
        outcome = self.replica.apply(encode_entry(entry), stamp_ms=1).outcome
        assert outcome.standing is (Standing.REPEATED if again else Standing.APPLIED)
        if self._commits_each:
            self.replica.commit()
        return outcome.answers

    def digest(self) -> bytes:
        return self.replica.digest()[1]

    def texts(self) -> bytes:
        """All that is stored of answers."""
        self.replica.commit()
        reader = sqlite3.connect(self.path)
        try:
            rows = reader.execute(
                "SELECT answers FROM agent_entries UNION ALL SELECT last_answer FROM pipeline_jobs"
                " UNION ALL SELECT answer FROM writers"
            )
            return b"".join(body for (body,) in rows)
        finally:
            reader.close()


def play(history: History, *, rises_late: bool) -> None:
    """Refusals of every place that stores them, before the level rises or after."""
    history.send(InitCluster(cluster_id="x"), RegisterAgent(agent=1, level_max=INTEGRITY_LEVEL))
    history.send(SetFeatureLevel(level=PIPELINE_LEVEL if rises_late else INTEGRITY_LEVEL))
    history.send(REFUSED)
    relayed = [RegisterAgent(agent=2, level_max=INTEGRITY_LEVEL), REFUSED]
    history.send(Relay(agent=2, epoch=1, n=0, commands=relayed))
    history.send(OpenJob(kind="test", name="n", lease_ms=1_000, age_max_ms=1_000))
    history.send(ReplaceRuns(job=1, n=1, input_keys=[], objects=BAD_OBJECTS, partitions=[]))
    if rises_late:
        history.send(REFUSED, SetFeatureLevel(level=INTEGRITY_LEVEL))


def reword(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """What another release would say."""
    monkeypatch.setattr(
        apply_topics, "_unknown", lambda _topic: Refused(Refusal.UNKNOWN_TOPIC, text)
    )

    def refuse(*_of: object) -> Refused:
        return Refused(Refusal.INVALID_OBJECT, text)

    monkeypatch.setattr("penstock.state.apply.replace.refuse_objects", refuse)
    assert apply_jobs.refuse_objects is not refuse


@pytest.mark.parametrize("rises_late", [False, True])
def test_rewording_a_message_changes_no_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rises_late: bool
) -> None:
    digests = set()
    for number, text in enumerate(("no topic has the id 30", "there is no topic of id 30")):
        reword(monkeypatch, text)
        history = History(tmp_path / f"{number}.sqlite")
        play(history, rises_late=rises_late)
        digests.add(history.digest())
        assert text.encode() not in history.texts()
        history.replica.close()
    assert len(digests) == 1


def test_below_the_level_the_sentence_is_state_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reword(monkeypatch, "the sentence")
    history = History(tmp_path / "metadata.sqlite")
    history.send(RegisterAgent(agent=1, level_max=INTEGRITY_LEVEL))
    history.send(SetFeatureLevel(level=PIPELINE_LEVEL))
    history.send(REFUSED)
    assert b"the sentence" in history.texts()
    assert history.send(REFUSED, again=True) == [Refused(Refusal.UNKNOWN_TOPIC, "the sentence")]
    history.replica.close()


@pytest.mark.parametrize("rises_late", [False, True])
def test_the_grouping_into_commits_changes_nothing(tmp_path: Path, rises_late: bool) -> None:
    digests = set()
    for commits_each in (False, True):
        path = tmp_path / f"{commits_each}.sqlite"
        history = History(path, commits_each=commits_each)
        play(history, rises_late=rises_late)
        digests.add(history.digest())
        history.replica.close()
    assert len(digests) == 1


@pytest.mark.parametrize("commits_each", [False, True])
def test_a_repeat_gets_the_reason_and_its_sentence(tmp_path: Path, commits_each: bool) -> None:
    history = History(tmp_path / "metadata.sqlite", commits_each=commits_each)
    history.send(RegisterAgent(agent=1, level_max=INTEGRITY_LEVEL))
    history.send(SetFeatureLevel(level=INTEGRITY_LEVEL))
    first = history.send(REFUSED, Heartbeat())
    assert first == [
        Refused(Refusal.UNKNOWN_TOPIC, f"no topic has the id {b'0'.hex() * 16}"),
        Done(),
    ]
    again = history.send(REFUSED, Heartbeat(), again=True)
    assert again == [Refused(Refusal.UNKNOWN_TOPIC, SENTENCES[Refusal.UNKNOWN_TOPIC]), Done()]
    history.replica.close()


def test_each_reason_has_a_sentence() -> None:
    assert set(SENTENCES) == set(Refusal)
    assert sentence(250) == "reason 250"


def test_the_stored_form() -> None:
    inner: list[AnyAnswer] = [Refused(Refusal.STALE_SHARD, "inside"), Done()]
    answers: list[AnyAnswer] = [Done(), Refused(Refusal.MALFORMED, "outside"), Relayed(1, inner)]
    stored = encode_stored(answers)
    assert b"side" not in stored
    assert restate(encode_answers(answers)) == stored == restate(stored)
    assert decode_answers(stored)[1] == Refused(Refusal.MALFORMED)
    assert decode_stored(stored) == as_if_stored(answers)
    assert decode_stored(stored)[2] == Relayed(
        1, [Refused(Refusal.STALE_SHARD, SENTENCES[Refusal.STALE_SHARD]), Done()]
    )
