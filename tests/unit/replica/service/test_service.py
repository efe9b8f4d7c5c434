"""Instances on one journal: submits, tokens, and a journal that is away or comes back older."""

import asyncio
import shutil
import sqlite3

import pytest

from penstock.model.errors import (
    ConflictError,
    InDoubtError,
    InvalidRequestError,
    OtherClusterError,
    RetryableError,
)
from penstock.replica import AsyncService, Machine, RefusedError, Service, Settings
from penstock.replica.service.service import ITEMS_MAX

pytestmark = pytest.mark.slow
PATIENT = Settings(wait_s=120.0)


class Notes(Machine):
    schema = "CREATE TABLE note (place INTEGER PRIMARY KEY, text TEXT NOT NULL) STRICT"

    def apply(self, connection, entry):
        if entry.value == "no":
            raise RefusedError("no notes like this")
        if entry.value == "bug":
            raise KeyError("bug")
        connection.execute("INSERT INTO note VALUES (?, ?)", (entry.position, entry.value))
        return connection.execute("SELECT count(*) FROM note").fetchone()[0]


class Many(Machine):
    name = "notes"
    schema = "CREATE TABLE note (n INTEGER PRIMARY KEY) STRICT"

    def apply(self, connection, entry):
        connection.execute("INSERT INTO note VALUES (?)", (entry.value,))


def notes(connection):
    return [text for (text,) in connection.execute("SELECT text FROM note ORDER BY place")]


@pytest.fixture
async def opened(tmp_path):
    """Opens instances by their names; all are closed in the end."""
    made = []

    async def open_(name, *, machine=None, settings=PATIENT, journal="j.sqlite"):
        service = await AsyncService.open(
            machine or Notes(),
            tmp_path / name,
            journal=str(tmp_path / journal),
            settings=settings,
        )
        made.append(service)
        return service

    yield open_
    for service in made:
        await service.close()


async def test_an_answer_is_applys_and_its_token_reads_it_at_another_instance(opened):
    one, two = await opened("one"), await opened("two")
    for count in range(1, 6):
        answer = await one.submit(f"note {count}")
        assert (answer.value, answer.is_repeat) == (count, False)
        assert len(await two.read(notes, token=answer.token)) == count
    assert two.status.position == one.status.position


async def test_a_submit_again_under_its_name_is_answered_alike_by_any_instance(opened):
    one, two = await opened("one"), await opened("two")
    first = await one.submit("a", client="me", number=7)
    again = await two.submit("a", client="me", number=7)
    assert again.is_repeat
    assert (again.value, again.position) == (first.value, first.position)
    assert await two.read(notes, token=again.token) == ["a"]
    with pytest.raises(ConflictError, match="had another value"):
        await two.submit("b", client="me", number=7)
    await one.submit("c", client="me", number=100)
    with pytest.raises(ConflictError, match="too old"):
        await two.submit("d", client="me", number=8)


async def test_refusals_and_bugs_reach_who_submitted(opened):
    one = await opened("one")
    with pytest.raises(RefusedError, match="no notes like this"):
        await one.submit("no")
    with pytest.raises(InvalidRequestError, match="KeyError"):
        await one.submit("bug")
    assert (await one.submit("yes")).value == 1


@pytest.mark.parametrize(
    ("value", "client", "number", "found"),
    [
        (object(), None, None, "object"),
        ("x" * (1 << 20), None, None, "1,048,576 are allowed"),
        (1 << 70, None, None, "ints"),
        ("a", "me", None, "a client has a number"),
        ("a", "!digest", 1, "isn't a client"),
        ("a", "", 1, "isn't a client"),
        ("a", "me", -1, "63 bits"),
        ("a", "me", 1 << 63, "63 bits"),
    ],
)
async def test_what_cannot_be_submitted_is_refused_before_it_is_written(
    opened, value, client, number, found
):
    one = await opened("one")
    with pytest.raises(InvalidRequestError, match=found):
        await one.submit(value, client=client, number=number)
    assert one.status.position == 0


async def test_what_waits_shares_an_entry(opened):
    one = await opened("one", machine=Many())
    answers = await asyncio.gather(*(one.submit(n) for n in range(ITEMS_MAX + 50)))
    assert len({answer.position for answer in answers}) <= 3
    count = await one.read(lambda c: c.execute("SELECT count(*) FROM note").fetchone()[0])
    assert count == ITEMS_MAX + 50


async def test_a_damaged_token_is_refused_and_a_strange_one_asks_for_nothing(opened):
    one, other = await opened("one"), await opened("other", journal="other.sqlite")
    await one.submit("a")
    for _ in range(5):
        await other.submit("b")
    token = other.token()
    with pytest.raises(InvalidRequestError, match="isn't a token"):
        await one.read(notes, token=token[:-3] + "AAA")
    assert await one.read(notes, token=token) == ["a"]


async def test_a_read_that_is_behind_its_token_fails_clearly(opened):
    one = await opened("one", settings=Settings(wait_s=0.05))
    with pytest.raises(RetryableError, match="position 9 of the token isn't here yet; 0 is"):
        await one.read(notes, token=one.token(9))


async def test_a_read_cannot_write(opened):
    one = await opened("one")
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        await one.read(lambda c: c.execute("DELETE FROM note"))
    assert await one.read(notes) == []


async def test_a_new_instance_and_a_restarted_one_have_everything(opened):
    one = await opened("one")
    await one.submit("a")
    await one.close()
    two = await opened("two")
    assert await two.read(notes) == ["a"]
    await two.submit("b")
    one = await opened("one")
    assert await one.read(notes) == ["a", "b"]


async def test_a_folder_of_another_journal_is_refused(opened):
    one = await opened("one")
    await one.close()
    with pytest.raises(OtherClusterError, match="follows the journal"):
        await opened("one", journal="other.sqlite")


async def test_one_process_has_a_folder(opened):
    await opened("one")
    with pytest.raises(ConflictError, match="is using this data directory"):
        await opened("one")


async def test_with_the_journal_away_reads_go_on_and_submits_say_so(opened, tmp_path):
    one = await opened("one")
    answer = await one.submit("a")
    await one.close()
    file = tmp_path / "j.sqlite"
    file.rename(tmp_path / "away.sqlite")
    file.mkdir()  # can't be opened
    one = await opened("one", settings=Settings(wait_s=0.05))
    assert await one.read(notes, token=answer.token) == ["a"]
    assert one.status.journal_is_away
    assert one.status.lag_s is None
    with pytest.raises(RetryableError, match="nothing was written"):
        await one.submit("b")
    with pytest.raises(RetryableError):
        await one.catch_up()


async def test_an_instance_that_opened_without_its_journal_follows_once_it_is_back(
    opened, tmp_path
):
    one = await opened("one")
    await one.submit("a")
    await one.close()
    file = tmp_path / "j.sqlite"
    file.rename(tmp_path / "away.sqlite")
    file.mkdir()
    one = await opened("one")
    submitting = asyncio.ensure_future(one.submit("b"))
    await asyncio.wait([submitting], timeout=0.05)
    assert not submitting.done()
    file.rmdir()
    (tmp_path / "away.sqlite").rename(file)
    assert (await submitting).value == 2
    assert one.status.journal_is_away == ""
    assert one.status.lag_s is not None


async def test_a_journal_that_came_back_older_begins_a_history_and_voids_tokens(opened, tmp_path):
    one = await opened("one")
    await one.submit("a")
    await one.close()
    file = tmp_path / "j.sqlite"
    shutil.copy(file, tmp_path / "older.sqlite")
    one, two = await opened("one"), await opened("two")
    await one.submit("lost")
    await one.submit("lost too")
    lost = one.token()
    await one.close()
    await two.close()
    for suffix in ("", "-wal", "-shm"):
        file.with_name(file.name + suffix).unlink(missing_ok=True)
    (tmp_path / "older.sqlite").rename(file)
    three = await opened("three")
    await three.submit("b")
    one = await opened("one")
    assert (tmp_path / "one" / "lost-1" / "state.sqlite").exists()
    assert await one.read(notes) == ["a", "b"]
    two = await opened("two")
    assert await two.read(notes, token=lost) == ["a", "b"]
    answer = await two.submit("c")
    assert await one.read(notes, token=answer.token) == ["a", "b", "c"]
    assert await three.read(notes, token=answer.token) == ["a", "b", "c"]
    assert one.token(3) == three.token(3) != lost


async def test_a_submit_in_doubt_is_applied_once(opened):
    one = await opened("one", settings=Settings(wait_s=0.05))
    journal = one._journal
    append = journal.append

    async def lost(body):
        await append(body)
        raise RetryableError("append", "journal", "the answer is lost")

    one._follower.nudge = lambda: None
    journal.append = lost
    read = journal.read
    away = True

    async def none(after, limit):
        return [] if away else await read(after, limit)

    journal.read = none
    with pytest.raises(InDoubtError, match="under the same client"):
        await one.submit("a", client="me", number=1)
    journal.append, away = append, False
    one._settings = PATIENT
    assert (await one.submit("a", client="me", number=1)).value == 1
    assert await one.read(notes) == ["a"]


def test_the_blocking_service_does_the_same(tmp_path):
    with Service.open(Notes(), tmp_path / "one", settings=PATIENT) as service:
        answer = service.submit("a", client="me", number=1)
        assert service.submit("a", client="me", number=1).is_repeat
        assert service.read(notes, token=answer.token) == ["a"]
        with pytest.raises(RefusedError):
            service.submit("no")
        service.catch_up()
        assert service.status.position >= answer.position
        assert service.read(notes, token=service.token()) == ["a"]
    service.close()
