"""An environment's machine: validity at the entry's position, repetitions, and two naive models."""

import sqlite3

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.authz.facts import schema
from penstock.authz.polar.program import Signature
from penstock.authz.state import entries
from penstock.authz.state import environment as machine_module
from penstock.authz.state.entries import Begin, Clear, Done, Entry, Refused, encode
from penstock.authz.state.environment import EnvironmentMachine
from penstock.model.errors import CorruptDataError
from penstock.replica.database import connect_reader
from penstock.replica.dump import state_digest
from penstock.replica.replica import Replica
from support.authz import POLICY, delete, insert, one, set_policy, write

ROLE = Signature("has_role", ("User", "String", "Organization"))
OTHER = "actor User {} declare likes(User, User);"


class Database:
    """A replica of one environment."""

    def __init__(self, path, name="default"):
        self.name = name
        self.replica = Replica.open(path, EnvironmentMachine(name), fsync=False)
        self.now_ms = 1_000

    def apply(self, *commands):
        self.now_ms += 1
        body = encode(Entry(self.name, commands))
        return self.replica.append(body, stamp_ms=self.now_ms).outcome

    def rows(self, signature):
        connection = connect_reader(self.replica.path)
        try:
            return set(connection.execute(schema.select(signature, ())))
        finally:
            connection.close()

    def has_table(self, signature):
        connection = connect_reader(self.replica.path)
        try:
            sql = "SELECT count(*) FROM sqlite_master WHERE name = ?"
            return bool(connection.execute(sql, (schema.table(signature),)).fetchone()[0])
        finally:
            connection.close()


@pytest.fixture
def database(tmp_path):
    found = Database(tmp_path / "default.sqlite")
    found.apply(Begin(b"12345678"))
    yield found
    found.replica.close()


def test_without_a_policy_no_fact_is_accepted(database):
    outcome = one(database.apply(write(insert("has_role", "User:a", "admin", "Organization:o"))))
    assert outcome == Refused(entries.UNKNOWN_FACT, (("has_role", ROLE.types),))


def test_a_batch_is_applied_in_order_or_not_at_all(database):
    database.apply(set_policy(POLICY, 0))
    good = insert("has_role", "User:a", "admin", "Organization:o")
    bad = insert("has_role", "User:a", "admin", "User:o")
    assert isinstance(one(database.apply(write(good, bad))), Refused)
    assert database.rows(ROLE) == set()
    outcome = one(
        database.apply(
            write(
                good,
                insert("has_role", "User:b", "member", "Organization:o"),
                delete("has_role", "User:a", "*", "Organization:*"),
            )
        )
    )
    assert outcome == Done(4, 3)
    assert database.rows(ROLE) == {("b", "member", "o")}


def test_a_refused_command_leaves_the_others_of_its_entry(database):
    database.apply(set_policy(POLICY, 0))
    outcomes = database.apply(
        write(insert("has_role", "User:a", "admin", "Organization:o")),
        write(insert("nonsense", "User:a")),
        write(insert("has_role", "User:b", "admin", "Organization:o")),
    )
    assert [type(each) for each in outcomes] == [Done, Refused, Done]
    assert database.rows(ROLE) == {("a", "admin", "o"), ("b", "admin", "o")}


def test_a_repeated_request_is_answered_again_and_not_applied_again(database):
    database.apply(set_policy(POLICY, 0))
    first = write(insert("has_role", "User:a", "admin", "Organization:o"), request=b"r" * 16)
    assert one(database.apply(first)) == Done(3, 1)
    # Another client deletes it behind the answer that was lost.
    database.apply(write(delete("has_role", "User:a", "*", "*")))
    assert one(database.apply(first)) == Done(3, 1, repeated=True)
    assert database.rows(ROLE) == set()
    # A client whose retry has a new id isn't recognised: the role is there again.
    again = write(*first.changes, request=b"s" * 16)
    assert one(database.apply(again)) == Done(6, 1)
    assert database.rows(ROLE) == {("a", "admin", "o")}


def test_a_refused_request_is_tried_anew(database):
    change = write(insert("has_role", "User:a", "admin", "Organization:o"), request=b"r" * 16)
    assert isinstance(one(database.apply(change)), Refused)
    database.apply(set_policy(POLICY, 0))
    assert one(database.apply(change)) == Done(4, 1)


def test_requests_are_forgotten_past_a_bound(database, monkeypatch):
    monkeypatch.setattr(machine_module, "REQUESTS_KEPT", 3)
    database.apply(set_policy(POLICY, 0))
    changes = [
        write(insert("has_role", f"User:{n}", "admin", "Organization:o"), request=bytes([n]) * 16)
        for n in range(5)
    ]
    for each in changes:
        database.apply(each)
    repeated = [one(database.apply(each)).repeated for each in reversed(changes)]
    assert repeated == [True, True, True, False, False]


def test_a_policy_checked_against_another_version_is_refused(database):
    assert one(database.apply(set_policy(POLICY, 0))) == Done(2, 1)
    assert one(database.apply(set_policy(OTHER, 0))) == Refused(entries.VERSION_MOVED, number=1)
    assert one(database.apply(set_policy(OTHER, 1))) == Done(4, 1)


def test_the_same_policy_changes_nothing(database):
    database.apply(set_policy(POLICY, 0))
    assert one(database.apply(set_policy(POLICY, 1))) == Done(3, 0)
    assert one(database.apply(set_policy(OTHER, 1))) == Done(4, 1)


def test_a_policy_is_refused_while_facts_are_stored_that_it_does_not_accept(database):
    database.apply(set_policy(POLICY, 0))
    database.apply(write(insert("has_role", "User:a", "admin", "Organization:o")))
    refused = one(database.apply(set_policy(OTHER, 1)))
    assert refused == Refused(entries.FACTS_IN_USE, (("has_role", ROLE.types),), 1)
    database.apply(Clear(b""))
    assert one(database.apply(set_policy(OTHER, 1))) == Done(6, 1)


def test_a_policy_and_a_fact_that_are_written_at_once_go_by_their_order(tmp_path):
    fact = write(insert("has_role", "User:a", "admin", "Organization:o"))
    for first_fact in (True, False):
        database = Database(tmp_path / f"{first_fact}.sqlite")
        database.apply(Begin(b"12345678"))
        database.apply(set_policy(POLICY, 0))
        policy = set_policy(OTHER, 1)
        outcomes = database.apply(*((fact, policy) if first_fact else (policy, fact)))
        assert [type(each) for each in outcomes] == [Done, Refused]
        database.replica.close()


def test_the_table_of_a_signature_outlives_its_policy_by_one(database):
    database.apply(set_policy(POLICY, 0))
    database.apply(set_policy(OTHER, 1))
    assert database.has_table(ROLE)
    assert isinstance(
        one(database.apply(write(insert("has_role", "User:a", "admin", "Organization:o")))), Refused
    )
    database.apply(set_policy(OTHER + "\n", 2))
    assert not database.has_table(ROLE)
    database.apply(set_policy(POLICY, 3))
    assert one(
        database.apply(write(insert("has_role", "User:a", "admin", "Organization:o")))
    ) == Done(7, 1)


def test_patterns_that_match_too_much_are_refused(database, monkeypatch):
    monkeypatch.setattr(machine_module, "DELETED_MAX", 10)
    database.apply(set_policy(POLICY, 0))
    facts = [insert("has_role", f"User:{n}", "admin", "Organization:o") for n in range(11)]
    database.apply(write(*facts))
    for changes in (
        [delete("has_role", "User:*", "*", "*")],
        [delete("has_role", "User:1", "*", "*"), delete("has_role", "*", "admin", "*")],
    ):
        refused = one(database.apply(write(*changes)))
        assert refused == Refused(entries.TOO_MANY_DELETED, number=10)
    assert len(database.rows(ROLE)) == 11
    assert one(database.apply(write(delete("has_role", "User:1", "*", "*")))).changed == 1


def test_an_entry_of_another_environment_stops_the_replica(database):
    body = encode(Entry("other", (Clear(b""),)))
    with pytest.raises(CorruptDataError, match="other"):
        database.replica.append(body, stamp_ms=1)


def test_ids_are_data_whatever_they_contain(database):
    database.apply(set_policy(POLICY, 0))
    for id_ in ("'; DROP TABLE policy; --", '"', "a\nb", "größe", "x" * 384):
        change = insert("has_role", f"User:{id_}", "admin", "Organization:o")
        database.apply(write(change))
        assert (id_, "admin", "o") in database.rows(ROLE)
        database.apply(write(delete("has_role", f"User:{id_}", "*", "*")))
        assert database.rows(ROLE) == set()


CHANGE = st.tuples(
    st.sampled_from(["i", "d"]),
    st.sampled_from(["User:a", "User:b", "User:*", "*"]),
    st.sampled_from(["admin", "member", "*"]),
    st.sampled_from(["Organization:o", "Organization:p", "Repository:o", "Organization:*", "*"]),
)


def change_of(row):
    kind, *arguments = row
    if kind == "d":
        return delete("has_role", *arguments)
    return insert("has_role", *(each.replace("*", "x") for each in arguments))


def modelled(facts, batch):
    """The naive model: a set of facts; None if the batch is refused."""
    after = set(facts)
    legal = {("User", "String", "Organization"), ("User", "String", "Repository")}
    for row in batch:
        change = change_of(row)
        if row[0] == "i":
            if tuple(kind for kind, _ in change.arguments) not in legal:
                return None
            after.add(change.arguments)
        else:
            after = {
                fact
                for fact in after
                if not all(
                    (kind is None or kind == found[0]) and (id_ is None or id_ == found[1])
                    for (kind, id_), found in zip(change.arguments, fact, strict=True)
                )
            }
    return after


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(st.lists(st.lists(CHANGE, min_size=1, max_size=4), max_size=8), st.data())
def test_a_replica_holds_what_the_model_does_however_entries_are_grouped(
    tmp_path_factory, batches, data
):
    folder = tmp_path_factory.mktemp("environments")
    database, other = Database(folder / "a.sqlite"), Database(folder / "b.sqlite")
    facts = set()
    for each in (database, other):
        each.apply(Begin(b"12345678"))
        each.apply(set_policy(POLICY, 0))
    for batch in batches:
        after = modelled(facts, batch)
        outcome = one(database.apply(write(*map(change_of, batch))))
        assert isinstance(outcome, Refused) == (after is None)
        facts = facts if after is None else after
    at = 0
    while at < len(batches):
        count = data.draw(st.integers(1, len(batches) - at))
        other.apply(*(write(*map(change_of, batch)) for batch in batches[at : at + count]))
        at += count
    for kind in ("Organization", "Repository"):
        signature = Signature("has_role", ("User", "String", kind))
        expected = {tuple(id_ for _, id_ in fact) for fact in facts if fact[2][0] == kind}
        assert database.rows(signature) == expected
        assert other.rows(signature) == expected
    database.replica.close()
    other.replica.close()


def test_a_replay_gives_the_same_state(tmp_path):
    first = Database(tmp_path / "a.sqlite")
    first.apply(Begin(b"12345678"))
    first.apply(set_policy(POLICY, 0))
    first.apply(
        write(insert("has_role", "User:a", "admin", "Organization:o"), request=b"r" * 16),
        write(insert("nonsense")),
    )
    first.apply(set_policy(OTHER, 1))
    first.apply(Clear(b"c" * 16))
    first.apply(set_policy(OTHER, 1))
    entries_of_first = list(first.replica.journal_after(0))
    second = Replica.open(tmp_path / "b.sqlite", EnvironmentMachine("default"), fsync=False)
    for entry in entries_of_first:
        second.apply(entry.body, stamp_ms=entry.time_ms)
    second.commit()
    digests = []
    for path in (tmp_path / "a.sqlite", tmp_path / "b.sqlite"):
        connection = sqlite3.connect(path)
        digests.append(state_digest(connection))
        connection.close()
    first.replica.close()
    second.close()
    assert digests[0] == digests[1]
