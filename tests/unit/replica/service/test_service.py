"""Instances on one journal: submits, tokens, and a journal that is away or comes back older."""

import asyncio
import contextlib
import shutil
import sqlite3

import pytest

from penstock.model.errors import (
    ConflictError,
    CorruptDataError,
    InDoubtError,
    InvalidRequestError,
    NotFoundError,
    OtherClusterError,
    RetryableError,
)
from penstock.replica import AsyncService, Machine, RefusedError, Service, Settings
from penstock.replica.difference import read_difference
from penstock.replica.service.comparing import Verdict, judge
from penstock.replica.service.entries import Digest
from penstock.replica.service.submitting import ITEMS_MAX
from penstock.system.waiting import wait

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

    async def open_(name, *, machine=None, settings=PATIENT, journal="j.sqlite", snapshots=""):
        service = await AsyncService.open(
            machine or Notes(),
            tmp_path / name,
            journal=str(tmp_path / journal),
            snapshots=snapshots and str(tmp_path / snapshots),
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


async def test_a_read_looks_at_what_is_committed(opened):
    """With a full disk entries are applied that no reader of the database sees."""
    one = await opened("one")
    answer = await one.submit("a")
    assert await one._readers.ask(notes, answer.position) == ["a"]
    with pytest.raises(RetryableError, match="isn't here yet"):
        await one._readers.ask(notes, answer.position + 1)


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
    one._submitter._wait_s = PATIENT.wait_s
    assert (await one.submit("a", client="me", number=1)).value == 1
    assert await one.read(notes) == ["a"]


BY_HAND = Settings(wait_s=120.0, snapshot_entries=1, snapshot_s=1e9, look_s=1e9, settle_s=0.05)


async def until(is_so):
    """The answers to a round may come after it was judged: it is judged again."""
    async with asyncio.timeout(240):
        while not is_so():
            await wait(0.01)


def rows(tmp_path):
    with contextlib.closing(sqlite3.connect(tmp_path / "j.sqlite")) as journal:
        return [at for (at,) in journal.execute("SELECT position FROM journal ORDER BY 1")]


async def test_a_new_instance_is_made_of_a_snapshot_behind_which_the_journal_is_trimmed(
    opened, tmp_path
):
    one = await opened("one", snapshots="s", settings=BY_HAND)
    for count in range(3):
        await one.submit(f"{count}")
        assert await one._turns.run_once()
    assert not await one._turns.run_once(), "none is due"
    await one.submit("more")
    assert min(rows(tmp_path)) > 1
    assert len(list((tmp_path / "s" / "archive" / "snapshots").iterdir())) == 2
    two = await opened("two", snapshots="s", settings=BY_HAND)
    assert await two.read(notes) == ["0", "1", "2", "more"]
    assert await two.compare()
    again = await two.submit("0", client="me", number=1)
    assert await one.read(notes, token=again.token) == ["0", "1", "2", "more", "0"]
    with pytest.raises(NotFoundError, match="trimmed"):
        await opened("three")


async def test_a_damaged_snapshot_is_passed_over_and_nothing_is_trimmed_behind_it(opened, tmp_path):
    one = await opened("one", snapshots="s", settings=BY_HAND)
    for count in range(2):
        await one.submit(f"{count}")
        assert await one._turns.run_once()
    newest = max((tmp_path / "s" / "archive" / "snapshots").iterdir())
    damaged = bytearray(newest.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    newest.write_bytes(damaged)
    before = rows(tmp_path)
    await one.submit("2")
    assert await one._turns.run_once()
    assert rows(tmp_path)[: len(before)] == before
    max((tmp_path / "s" / "archive" / "snapshots").iterdir()).unlink()
    two = await opened("two", snapshots="s", settings=BY_HAND)
    assert await two.read(notes) == ["0", "1", "2"]


async def test_one_instance_at_a_time_takes_snapshots(opened):
    instances = [await opened(name, snapshots="s", settings=BY_HAND) for name in ("one", "two")]
    await instances[0].submit("a")
    await instances[1].catch_up()
    taken = await asyncio.gather(*(each._turns.run_once() for each in instances))
    assert sorted(taken) == [False, True]


async def test_equal_instances_compare_equal(opened):
    instances = [await opened(name, settings=BY_HAND) for name in ("one", "two", "three")]
    await asyncio.gather(*(each.submit("a") for each in instances))
    assert await instances[0].compare()
    assert [each.status.failure for each in instances] == [""] * 3


class Differing(Notes):
    """It depends on more than its entries."""

    name = "notes"
    here = ""

    def apply(self, connection, entry):
        connection.execute("INSERT INTO note VALUES (?, ?)", (entry.position, self.here))


async def test_an_instance_that_differs_stops_loudly_and_is_made_again(opened, tmp_path, caplog):
    machines = [Differing() for _ in range(3)]
    machines[2].here = "another"
    names = ("one", "two", "three")
    instances = [
        await opened(name, settings=BY_HAND, machine=machine)
        for name, machine in zip(names, machines, strict=True)
    ]
    await instances[0].submit("a")
    await instances[2].catch_up()
    await instances[0].compare()
    await until(lambda: instances[2].status.failure)
    assert "differs from most others in note" in instances[2].status.failure
    assert "differs from most others in note" in caplog.text
    for call in (instances[2].submit("b"), instances[2].read(notes)):
        with pytest.raises(CorruptDataError, match="differs from most others"):
            await call
    assert await instances[0].read(notes) == [""]
    await instances[2].close()
    three = await opened("three", settings=BY_HAND, machine=Differing())
    assert (tmp_path / "three" / "state.sqlite.aside").exists()
    assert await three.read(notes) == [""]
    assert await three.compare()
    await until(lambda: read_difference(tmp_path / "three" / "state.sqlite") is None)


async def test_without_a_majority_nothing_is_submitted_and_reads_go_on(opened):
    machines = [Differing(), Differing()]
    machines[1].here = "another"
    one = await opened("one", settings=BY_HAND, machine=machines[0])
    two = await opened("two", settings=BY_HAND, machine=machines[1])
    await one.submit("a")
    await two.catch_up()
    await one.compare()
    await until(lambda: one._comparing.refusal is not None)
    with pytest.raises(CorruptDataError, match="without a majority"):
        await one.submit("b")
    assert await one.read(notes) == [""]
    three = await opened("three", settings=BY_HAND, machine=Differing())
    await three.compare()
    await until(lambda: one._comparing.refusal is None)
    await one.submit("b")
    await until(lambda: two.status.failure)


def test_a_majority_decides_among_those_of_one_version():
    def digest(instance, hash_, version=1):
        return Digest(instance, 5, 1, version, {"a": b"same", "b": hash_})

    one, two, three = digest(1, b"x"), digest(2, b"x"), digest(3, b"y")
    assert judge(one, [one]) == (Verdict.EQUAL, [])
    assert judge(one, [one, two]) == (Verdict.EQUAL, [])
    assert judge(one, [one, two, three]) == (Verdict.OTHERS_DIFFER, ["b"])
    assert judge(three, [one, two, three]) == (Verdict.DIFFERS, ["b"])
    assert judge(three, [one, three]) == (Verdict.UNDECIDED, ["b"])
    assert judge(one, [one, digest(4, b"y", version=2)]) == (Verdict.EQUAL, [])


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
