"""Bad records come into their topic once, however late, and by whoever."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest

from penstock.model.errors import NotFoundError
from penstock.pipeline.tables.dead_letters import DEAD_LETTERS_PROPERTY, DeadLetterTopic
from support.api_server import ApiServer
from support.tables import (
    KilledError,
    Lake,
    follow,
    new_record,
    produce,
    produce_values,
    records_of,
    spoil,
)

BAD = new_record(b"bad", b"letter", timestamp_ms=2**62)


def letters(api: ApiServer, topic: str) -> list[bytes | None]:
    return [record.key for record in records_of(api, f"{topic}.dlq")]


def stop(
    api: ApiServer, lake: Lake, topic: str, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """A run that is killed at a step."""

    def end() -> None:
        raise KilledError

    with monkeypatch.context() as patched:
        spoil(patched.setattr, step, end)
        with pytest.raises(KilledError):
            follow(api, lake, topic)


def expire_writers(api: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the keeper does when all have been silent for longer than it keeps them."""
    keeper = api.server.parts.log.keeper
    with monkeypatch.context() as patched:
        patched.setattr(
            keeper, "_limits", dataclasses.replace(keeper._limits, writer_expiration_ms=-(10**6))
        )
        api.on_loop(keeper.expire_writers())


@pytest.mark.slow
def test_a_table_goes_on_long_after_its_last_dead_letter(
    api: ApiServer, lake: Lake, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    produce(api, topic, 0, [BAD])
    follow(api, lake, topic)
    expire_writers(api, monkeypatch)
    produce_values(api, topic, [b"a"])
    assert follow(api, lake, topic).rows == 1
    assert letters(api, topic) == [b"bad"]


@pytest.mark.slow
def test_what_was_written_long_ago_is_not_written_again(
    api: ApiServer, lake: Lake, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run was killed behind the write, so that the staged file is there."""
    produce(api, topic, 0, [BAD])
    stop(api, lake, topic, monkeypatch, "after_letters")
    assert [path for path in lake.files(topic) if "dead-letters" in path]
    expire_writers(api, monkeypatch)
    follow(api, lake, topic)
    assert letters(api, topic) == [b"bad"]


def test_a_record_that_is_too_large_for_the_topic_of_letters_leaves_its_place_there(
    api: ApiServer, lake: Lake, topic: str
) -> None:
    api.alter(f"{topic}.dlq", {"max.message.bytes": "1000"})
    large = new_record(b"large", random.Random(1).randbytes(5000), timestamp_ms=2**62)
    produce(api, topic, 0, [BAD, large])
    assert follow(api, lake, topic).bad_records == 2
    assert letters(api, topic) == [b"bad", None]
    headers = dict(records_of(api, f"{topic}.dlq")[1].headers)
    assert headers["penstock.offset"] == b"1"
    assert b"bytes" in (headers["penstock.left-out"] or b"")


@pytest.mark.slow
def test_another_driver_writes_them_first(
    api: ApiServer, lake: Lake, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And deletes the staged file before this one reads it."""
    produce(api, topic, 0, [BAD])
    stop(api, lake, topic, monkeypatch, "before_letters")
    real = DeadLetterTopic.find
    faster: list[int] = []

    def find(self: DeadLetterTopic) -> Any:
        if not faster:
            faster.append(1)
            follow(api, lake, topic)
        return real(self)

    monkeypatch.setattr(DeadLetterTopic, "find", find)
    follow(api, lake, topic)
    assert letters(api, topic) == [b"bad"]


@pytest.mark.slow
def test_a_staged_file_that_somebody_deleted_stops_the_table_until_it_is_settled(
    api: ApiServer, lake: Lake, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    produce(api, topic, 0, [BAD])
    stop(api, lake, topic, monkeypatch, "before_letters")
    for path in (lake.folder / "penstock" / topic / "penstock-dead-letters").iterdir():
        path.unlink()
    with pytest.raises(NotFoundError, match=f"remove the table's property {DEAD_LETTERS_PROPERTY}"):
        follow(api, lake, topic)
    with lake.table(topic).transaction() as transaction:
        transaction.remove_properties(DEAD_LETTERS_PROPERTY)
    produce(api, topic, 0, [BAD])
    follow(api, lake, topic)
    assert letters(api, topic) == [b"bad"]
