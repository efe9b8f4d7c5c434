"""Several `penstock authz serve` on one journal in a real PostgreSQL, with Oso's own SDK."""

from __future__ import annotations

import hashlib
import http.client
import json
import shutil
import signal
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import psycopg
import pytest
from oso_cloud import Oso, Value

from penstock.replica.dump import state_digest
from support.authz import POLICY, TEST_KEY, AuthzProcess
from support.authz_instances import instances
from support.postgres import PostgresServer
from support.waiting import eventually

ALICE = Value("User", "alice")
PATIENCE_S = 120


def role(user: str, repository: str) -> dict[str, object]:
    return {
        "predicate": "has_role",
        "args": [
            {"type": "User", "id": user},
            {"type": "String", "id": "reader"},
            {"type": "Repository", "id": repository},
        ],
    }


def facts(server: AuthzProcess, token: str = "") -> list[str]:
    headers = [("OsoOffset", token)] if token else []
    status, found = server.call("GET", "/api/facts?predicate=has_role", headers=headers)
    assert status == 200, found
    return sorted(f"{each['args'][0]['id']} {each['args'][2]['id']}" for each in found)


def write(server: AuthzProcess, *changed: dict[str, object]) -> tuple[int, str]:
    """Write facts; status, and the token or what went wrong."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE_S)
    try:
        headers = {"Authorization": f"Bearer {TEST_KEY}", "Content-Type": "application/json"}
        connection.request("POST", "/api/batch", json.dumps([{"inserts": changed}]), headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        return answer.status, answer.headers["OsoOffset"] or text
    finally:
        connection.close()


def write_until_done(server: AuthzProcess, *changed: dict[str, object]) -> str:
    """Write facts, again and again where the service says so; the token."""
    found = [(0, "")]

    def done() -> bool:
        found.append(write(server, *changed))
        assert found[-1][0] in (200, 503), found[-1]
        return found[-1][0] == 200

    eventually(done, timeout_seconds=PATIENCE_S)
    return found[-1][1]


@pytest.fixture
def two(postgres_url: str, journal_name: str, tmp_path: Path) -> Iterator[list[AuthzProcess]]:
    with instances(tmp_path, postgres_url, journal_name, 2) as made:
        yield made


@pytest.fixture
def breakable(own_postgres: PostgresServer) -> Iterator[PostgresServer]:
    """It runs again after each test."""
    yield own_postgres
    if not own_postgres.running:
        own_postgres.start()


def set_policy(server: AuthzProcess) -> None:
    def done() -> bool:
        status, found = server.call("POST", "/api/policy", {"filename": "", "src": POLICY})
        assert status in (200, 202, 503), found
        return status != 503

    eventually(done, timeout_seconds=PATIENCE_S)


def test_the_sdk_writes_at_one_instance_and_reads_at_another(two: list[AuthzProcess]) -> None:
    one, other = (Oso(url=server.url, api_key=TEST_KEY) for server in two)
    sessions = [one.api.session, other.api.session]
    try:
        one.policy(POLICY)
        for turn in range(30):
            repository = Value("Repository", str(turn))
            one.insert(("has_role", ALICE, "reader", repository))
            # What the client of one instance holds is good at the other.
            other.api.session.headers["OsoOffset"] = one.api.session.headers["OsoOffset"]
            assert other.authorize(ALICE, "read", repository)
            one, other = other, one
        listed = other.list(ALICE, "read", "Repository")
        assert listed == sorted(map(str, range(30)))
        assert one.get(("has_role", None, None, None)) == other.get(("has_role", None, None, None))
    finally:
        for session in sessions:
            session.close()


def test_pages_come_from_the_instance_that_made_the_list(two: list[AuthzProcess]) -> None:
    one, other = two
    set_policy(one)
    token = write_until_done(one, *(role("alice", str(n)) for n in range(30)))
    assert facts(other, token)
    asked = {
        "actor_type": "User",
        "actor_id": "alice",
        "action": "read",
        "resource_type": "Repository",
        "page_size": 20,
    }
    status, first = other.call("POST", "/api/list", asked)
    assert status == 200
    # Written between the pages, and not in the list, which is of one position.
    write_until_done(one, role("alice", "new"))
    following = asked | {"page_token": first["next_page_token"]}
    status, second = other.call("POST", "/api/list", following)
    assert status == 200
    assert first["results"] + second["results"] == sorted(map(str, range(30)))
    status, refused = one.call("POST", "/api/list", following)
    assert (status, "begin again" in refused["message"]) == (400, True)


def test_environments_and_keys_are_of_all_instances(two: list[AuthzProcess]) -> None:
    one, other = two
    assert one.call("POST", "/v1/environments", {"name": "staging"})[0] == 200
    assert other.call("POST", "/v1/environments", {"name": "staging"})[0] == 400
    status, made = one.call("POST", "/v1/keys", {"environment": "staging", "scope": "admin"})
    assert status == 200
    key = made["key"]
    eventually(lambda: other.call("GET", "/api/stats", key=key)[0] == 200)
    content = {"filename": "", "src": POLICY}
    assert other.call("POST", "/api/policy", content, key=key)[0] == 200
    batch = [{"inserts": [role("bob", "anvil")]}]
    assert other.call("POST", "/api/batch", batch, key=key)[0] == 200
    eventually(lambda: one.call("GET", "/api/stats", key=key)[1]["num_facts"] == 1)
    assert one.call("GET", "/api/stats")[1]["num_facts"] == 0
    revoked = {"number": made["number"]}
    assert one.call("DELETE", "/v1/keys", revoked)[0] == 200
    eventually(lambda: other.call("GET", "/api/stats", key=key)[0] == 401)


class Load:
    """Inserts roles at an instance from some threads; which were acknowledged."""

    def __init__(self, server: AuthzProcess, name: str, threads: int = 4) -> None:
        self.acknowledged: list[str] = []
        self.unsure: list[str] = []
        self.is_ending = False
        self._threads = [
            threading.Thread(target=self._run, args=(server, f"{name}{number}"), daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, server: AuthzProcess, name: str) -> None:
        number = 0
        while not self.is_ending:
            number += 1
            try:
                status, found = write(server, role(name, str(number)))
            except (OSError, http.client.HTTPException):
                self.unsure.append(f"{name} {number}")
                return
            assert status in (200, 503), found
            (self.acknowledged if status == 200 else self.unsure).append(f"{name} {number}")

    def more(self, count: int) -> None:
        wanted = len(self.acknowledged) + count
        eventually(lambda: len(self.acknowledged) >= wanted, timeout_seconds=PATIENCE_S)

    def end(self) -> None:
        self.is_ending = True
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()


def check_equal(made: list[AuthzProcess], *loads: Load, has_all_entries: bool = True) -> None:
    """Each instance has all that was acknowledged, and nothing that wasn't written; then their
    databases are the same, entry by entry, unless one began with a snapshot."""
    acknowledged = {each for load in loads for each in load.acknowledged}
    unsure = {each for load in loads for each in load.unsure}
    token = write_until_done(made[0], role("last", "last"))
    for server in made:
        found = set(eventually(partial(facts_if_there, server, token)))
        assert acknowledged <= found
        assert found - acknowledged <= unsure | {"last last"}
    for server in made:
        assert server.stop() == 0, server.tail()
    digests = [digest(server) for server in made]
    assert len({state for state, _ in digests}) == 1
    if has_all_entries:
        assert len({journal for _, journal in digests}) == 1


def facts_if_there(server: AuthzProcess, token: str) -> list[str]:
    """All roles; none while the token's position isn't applied."""
    headers = [("OsoOffset", token)]
    status, found = server.call("GET", "/api/facts?predicate=has_role", headers=headers)
    assert status in (200, 503), found
    if status == 503:
        return []
    return [f"{each['args'][0]['id']} {each['args'][2]['id']}" for each in found]


def digest(server: AuthzProcess) -> tuple[bytes, bytes]:
    """Digests of the state and of the journal of the environment's database."""
    path = server.data / "environments" / "default.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        journal = hashlib.sha256()
        for row in connection.execute("SELECT * FROM journal ORDER BY position"):
            journal.update(repr(row).encode())
        return state_digest(connection), journal.digest()


def test_an_instance_that_was_killed_comes_back_with_all(two: list[AuthzProcess]) -> None:
    one, other = two
    set_policy(one)
    loads = [Load(one, "one"), Load(other, "other")]
    for load in loads:
        load.more(40)
    one.kill()
    loads[1].more(40)
    one.start()
    loads.append(Load(one, "again"))
    loads[2].more(40)
    for load in loads:
        load.end()
    check_equal(two, *loads)


def test_a_new_instance_reads_the_journal(
    two: list[AuthzProcess], postgres_url: str, journal_name: str, tmp_path: Path
) -> None:
    set_policy(two[0])
    load = Load(two[0], "one")
    load.more(100)
    with instances(tmp_path / "later", postgres_url, journal_name, 1) as (third,):
        load.more(20)
        load.end()
        check_equal([*two, third], load)


def test_a_kind_of_directory_stays_what_it_is(two: list[AuthzProcess], tmp_path: Path) -> None:
    assert two[0].stop() == 0
    shared = two[0].arguments
    two[0].arguments = ("--test-key",)
    with pytest.raises(AssertionError, match="follow a shared journal"):
        two[0].start()
    own = AuthzProcess(tmp_path / "own", tmp_path / "own-log", "--test-key")
    own.start()
    assert own.stop() == 0
    own.arguments = shared
    with pytest.raises(AssertionError, match="have their own journals"):
        own.start()


def readiness(server: AuthzProcess) -> int:
    return server.call("GET", "/readyz", key="", raw=True)[0]


def gauge(server: AuthzProcess, name: str) -> float:
    status, text = server.call("GET", "/metrics", key="", raw=True)
    assert status == 200
    (line,) = (each for each in text.splitlines() if each.startswith(f"{name} "))
    return float(line.split()[1])


def test_reads_go_on_without_the_database_and_writes_fail_clearly(
    breakable: PostgresServer, journal_name: str, tmp_path: Path
) -> None:
    stale = ("--stale-max", "1")
    with instances(tmp_path, breakable.url, journal_name, 2, *stale) as made:
        one, other = made
        set_policy(one)
        token = write_until_done(one, role("alice", "anvil"))
        assert facts(other, token) == ["alice anvil"]
        loads = [Load(one, "one"), Load(other, "other")]
        for load in loads:
            load.more(30)
        breakable.kill()
        # Each write under way is answered: by 503, never as if it had been written.
        failed = len(loads[0].unsure)
        eventually(lambda: len(loads[0].unsure) > failed, timeout_seconds=PATIENCE_S)
        status, text = write(one, role("late", "late"))
        assert status == 503
        assert "nothing was written" in text or "may still be applied" in text
        for server in made:
            assert "alice anvil" in facts(server)
            eventually(partial(readiness, server), lambda status: status == 503)
            assert gauge(server, "penstock_authz_journal_confirmed_seconds") > 1
        breakable.start()
        for load in loads:
            load.more(30)
            load.end()
            load.unsure += ["late late", "alice anvil"]
        for server in made:
            eventually(partial(readiness, server), lambda status: status == 200)
        check_equal(made, *loads)


def test_a_hung_database_is_as_one_that_is_away(
    breakable: PostgresServer, journal_name: str, tmp_path: Path
) -> None:
    with instances(tmp_path, breakable.url, journal_name, 2) as made:
        one, _ = made
        set_policy(one)
        load = Load(one, "one")
        load.more(30)
        breakable.pause()
        try:
            failed = len(load.unsure)
            eventually(lambda: len(load.unsure) > failed, timeout_seconds=PATIENCE_S)
            assert facts(one)
        finally:
            breakable.resume()
        load.more(30)
        load.end()
        check_equal(made, load)


def test_a_journal_that_came_back_older_is_noticed(
    breakable: PostgresServer, journal_name: str, tmp_path: Path
) -> None:
    kept = breakable.folder / "kept"
    with instances(tmp_path, breakable.url, journal_name, 2) as made:
        one, other = made
        set_policy(one)
        token = write_until_done(one, role("alice", "anvil"))
        assert facts(other, token) == ["alice anvil"]
        breakable.stop()
        shutil.copytree(breakable.data, kept)
        for path in (kept, *kept.rglob("*")):
            shutil.chown(path, breakable.data.owner(), breakable.data.group())
        breakable.start()
        lost = write_until_done(one, role("alice", "lost"))
        assert eventually(lambda: facts_if_there(other, lost), bool)
        breakable.kill()
        shutil.rmtree(breakable.data)
        shutil.move(kept, breakable.data)
        breakable.start()
        for server in made:
            assert server.process is not None
            assert server.process.wait(PATIENCE_S) != 0
            assert "came back older" in server.tail()
        for server in made:
            server.start()
            assert (server.data / "lost-1" / "environments" / "default.sqlite").exists()
            # A client that wrote what is lost goes on with its token, which asks for nothing.
            assert facts(server, lost) == ["alice anvil"]
        token = write_until_done(other, role("alice", "next"))
        assert eventually(lambda: facts_if_there(one, token), bool) == [
            "alice anvil",
            "alice next",
        ]


def snapshots_of(tmp_path: Path, entries: int = 40) -> tuple[str, ...]:
    """Arguments by which snapshots are taken often."""
    store = str(tmp_path / "snapshots")
    return ("--snapshots", store, "--snapshot-entries", str(entries), "--snapshot-interval", "1")


def sets(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "snapshots" / "sets").glob("*"))


def positions(postgres_url: str, name: str) -> tuple[int, int]:
    """The first and the last position of the journal."""
    with psycopg.connect(postgres_url) as connection:
        row = connection.execute(f"SELECT min(position), max(position) FROM {name}_journal")
        return row.fetchone()  # type: ignore[return-value]


def test_a_new_instance_begins_with_snapshots_that_are_taken_under_load(
    postgres_url: str, journal_name: str, tmp_path: Path
) -> None:
    more = snapshots_of(tmp_path)
    with instances(tmp_path, postgres_url, journal_name, 2, *more) as made:
        set_policy(made[0])
        loads = [Load(server, f"load{number}") for number, server in enumerate(made)]
        eventually(
            lambda: len(sets(tmp_path)) >= 2 and positions(postgres_url, journal_name)[0] > 1,
            timeout_seconds=PATIENCE_S,
        )
        # One that takes them is killed at any moment, perhaps in the middle.
        for server in made:
            loads[-1].more(20)
            server.kill()
            server.start()
            loads.append(Load(server, f"again{len(loads)}"))
            loads[-1].more(20)
        with instances(tmp_path / "later", postgres_url, journal_name, 1, *more) as (third,):
            loads[-1].more(20)
            for load in loads:
                load.end()
            # The journal's beginning is gone, so that it is made of snapshots.
            assert "are made of the snapshots of position" in third.tail()
            check_equal([*made, third], *loads, has_all_entries=False)


def test_an_instance_that_was_stopped_for_long_begins_again(
    postgres_url: str, journal_name: str, tmp_path: Path
) -> None:
    more = snapshots_of(tmp_path)
    with instances(tmp_path, postgres_url, journal_name, 2, *more) as made:
        one, other = made
        set_policy(one)
        token = write_until_done(one, role("alice", "anvil"))
        assert facts(other, token) == ["alice anvil"]
        assert other.process is not None
        (position,) = [positions(postgres_url, journal_name)[1]]
        other.process.send_signal(signal.SIGSTOP)
        load = Load(one, "one")
        try:
            eventually(
                lambda: positions(postgres_url, journal_name)[0] > position + 1,
                timeout_seconds=PATIENCE_S,
            )
        finally:
            other.process.send_signal(signal.SIGCONT)
        # It can't follow any more, and says so.
        assert other.process.wait(PATIENCE_S) != 0
        assert "trimmed" in other.tail()
        other.start()
        load.end()
        load.unsure.append("alice anvil")
        check_equal(made, load, has_all_entries=False)
