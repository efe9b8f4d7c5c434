"""The shard's machine: places in environments, the directory, and entries that come again."""

import pytest

from penstock.authz.state import entries, shard_entries
from penstock.authz.state import shard as module
from penstock.authz.state.entries import AddKey, Clear, CreateEnvironment, decode
from penstock.authz.state.shard import DirectoryChanged, HistoryBegan, ShardMachine, Streamed
from penstock.authz.state.shard_entries import Decided, Denied, Placed, Unordered, item
from penstock.model.errors import CorruptDataError
from penstock.order.outcome import Standing
from penstock.order.protocol import EntryKey
from penstock.replica.replica import Replica
from support.authz import insert, set_policy, write

LOG = b"8 bytes."


class Shard:
    """A shard's database, and rows of its journal."""

    def __init__(self, path):
        self.machine = ShardMachine()
        self.replica = Replica.open(path, self.machine, fsync=False, keeps_journal=False)

    def row(self, agent, epoch, n, *items):
        body = shard_entries.encode(EntryKey(agent, epoch, n), 7, list(items))
        assert shard_entries.key_of(body) == (agent, epoch, n)
        return self.replica.apply(body, stamp_ms=5).outcome

    def pending(self):
        self.replica.commit()
        execute = self.machine._execute
        return execute("SELECT environment, position FROM pending ORDER BY 1, 2").fetchall()


def opening(cluster="a-cluster"):
    return shard_entries.opening(cluster, b"token", "software")


@pytest.fixture
def shard(tmp_path):
    made = Shard(tmp_path / "shard.sqlite")
    made.row(1, 10, 0, opening(), item("", CreateEnvironment("default", LOG)))
    yield made
    made.replica.close()


def test_commands_get_places_in_their_environments(shard):
    created = shard.row(1, 10, 1, item("", CreateEnvironment("other", LOG)))
    assert created.answers == [Decided(2, 1)]
    first = shard.row(
        1,
        10,
        2,
        item("default", Clear(b"")),
        item("other", write(insert("p", "A:1"))),
        item("missing", Clear(b"")),
        item("default", write(insert("p", "A:2"))),
    )
    assert first.answers == [Placed(2, 0), Placed(2, 0), Denied(entries.MISSING), Placed(2, 1)]
    assert [(each.environment, each.position) for each in first.changes] == [
        ("default", 2),
        ("other", 2),
    ]
    commands = decode(first.changes[0].body).commands
    assert commands == (Clear(b""), write(insert("p", "A:2")))
    assert decode(first.changes[1].body).environment == "other"
    assert shard.row(1, 10, 3, item("default", Clear(b""))).answers == [Placed(3, 0)]
    assert shard.pending() == [
        ("default", 1),
        ("default", 2),
        ("default", 3),
        ("other", 1),
        ("other", 2),
    ]
    shard.machine.stored("default", 2)
    shard.row(1, 10, 4, item("", AddKey("k", "default", b"h" * 32, "read", "")))
    assert shard.pending() == [("default", 3), ("other", 1), ("other", 2)]


def test_a_policy_says_that_it_is_alone(shard):
    policy = item("default", set_policy("actor User {}", 0))
    (change,) = shard.row(1, 10, 1, policy).changes
    assert change.is_alone
    assert not shard.row(1, 10, 2, item("default", Clear(b""))).changes[0].is_alone


def test_an_environment_begins_once(shard):
    again = item("", CreateEnvironment("default", b"another."))
    found = shard.row(1, 10, 1, again)
    assert (found.answers, found.changes) == ([Denied(entries.EXISTS)], [])
    new = shard.row(1, 10, 2, item("", CreateEnvironment("new", LOG)))
    assert new.changes[0] == DirectoryChanged()
    assert isinstance(new.changes[1], Streamed)
    assert decode(new.changes[1].body).commands == (entries.Begin(LOG),)
    with pytest.raises(CorruptDataError, match="has no log"):
        shard.row(1, 10, 3, item("", CreateEnvironment("without")))


def test_an_entry_that_comes_again_gives_its_answers_again(shard):
    first = shard.row(1, 10, 1, item("default", Clear(b"")))
    again = shard.row(1, 10, 1, item("default", Clear(b"")))
    assert (again.standing, again.answers, again.changes) == (
        Standing.REPEATED,
        first.answers,
        [],
    )
    assert shard.pending() == [("default", 1), ("default", 2)]


@pytest.mark.parametrize(
    ("epoch", "n", "detail", "ends"),
    [
        (10, 2, "n 2, the instance's last is 0", False),
        (9, 1, "epoch 9, the instance's is 10", True),
        (11, 0, "epoch 11 was never opened", True),
        (11, 1, "epoch 11 was never opened", True),
    ],
)
def test_an_entry_out_of_order_changes_nothing(shard, epoch, n, detail, ends):
    refused = shard.row(1, epoch, n, item("default", Clear(b"")))
    assert (refused.standing, refused.answers) == (Standing.REFUSED, [Unordered(detail, ends)])
    assert shard.pending() == [("default", 1)]


def test_a_new_epoch_ends_the_one_before(shard):
    assert shard.machine.next_epoch(1, floor=0) == 11
    assert shard.machine.next_epoch(1, floor=20) == 20
    assert shard.machine.next_epoch(2, floor=0) == 0
    assert shard.row(1, 11, 0, opening()).standing is Standing.APPLIED
    assert shard.row(1, 10, 1, item("default", Clear(b""))).standing is Standing.REFUSED
    assert shard.row(1, 11, 1, item("default", Clear(b""))).answers == [Placed(2, 0)]
    assert shard.machine.cluster_id() == "a-cluster"


def test_the_instance_that_wrote_longest_ago_is_forgotten(shard, monkeypatch):
    monkeypatch.setattr(module, "SENDERS_MAX", 2)
    shard.row(2, 10, 0, opening())
    shard.row(3, 10, 0, opening())
    assert shard.row(2, 10, 1, item("default", Clear(b""))).standing is Standing.APPLIED
    assert shard.row(1, 10, 1, item("default", Clear(b""))).standing is Standing.REFUSED


def test_a_seal_changes_nothing_and_damage_is_an_error(shard):
    assert shard.replica.apply(b"", stamp_ms=5).outcome.answers == []
    with pytest.raises(CorruptDataError, match="version 9"):
        shard.replica.apply(b"\x09", stamp_ms=5)


def test_a_history_begins_once_for_a_loss(shard):
    def began(n, lost_ms, history):
        found = shard.row(1, 10, n, shard_entries.new_history(lost_ms, history))
        stored = shard.machine._execute("SELECT history, since_ms FROM shard").fetchone()
        return found.answers, found.changes, stored

    assert shard.machine._execute("SELECT history FROM shard").fetchone() == (b"",)
    # Journal time is 5 here.
    assert began(1, 4, b"history1") == (
        [Decided(2, 1)],
        [HistoryBegan(b"history1")],
        (b"history1", 5),
    )
    # Another instance had applied less, or more, of what was lost.
    assert began(2, 3, b"history2") == ([Denied(entries.EXISTS)], [], (b"history1", 5))
    # Entries of this history are lost now.
    assert began(3, 6, b"history3")[2] == (b"history3", 5)


def test_a_claim_holds_for_a_time(shard):
    shard.row(2, 10, 0, opening())
    assert shard.row(1, 10, 1, shard_entries.claim(100)).answers == [Decided(3, 1)]
    assert shard.row(2, 10, 1, shard_entries.claim(100)).answers == [Denied(entries.EXISTS)]
    assert shard.row(1, 10, 2, shard_entries.claim(100)).answers == [Decided(5, 1)]
    later = shard_entries.encode(EntryKey(2, 10, 2), 7, [shard_entries.claim(100)])
    assert shard.replica.apply(later, stamp_ms=105).outcome.answers == [Decided(6, 1)]
