"""The directory's machine: environments and keys."""

import pytest

from penstock.authz.state import directory as module
from penstock.authz.state import entries
from penstock.authz.state.directory import DirectoryMachine
from penstock.authz.state.entries import (
    AddKey,
    Clear,
    CreateEnvironment,
    Done,
    Entry,
    Refused,
    RevokeKey,
    encode,
)
from penstock.model.errors import CorruptDataError
from penstock.replica.replica import Replica


@pytest.fixture
def apply(tmp_path):
    replica = Replica.open(tmp_path / "directory.sqlite", DirectoryMachine(), fsync=False)
    yield lambda *each: replica.append(encode(Entry("", each)), stamp_ms=5).outcome
    replica.close()


def key(number, environment="default", text=b""):
    return AddKey(number, environment, (text or number.encode()).ljust(32), "read", "")


def test_environments_and_keys_are_made_once(apply):
    assert apply(CreateEnvironment("default"), CreateEnvironment("default")) == [
        Done(1, 1),
        Refused(entries.EXISTS),
    ]
    assert apply(key("a"), key("a"), key("b", text=b"a")) == [
        Done(2, 1),
        Refused(entries.EXISTS),
        Refused(entries.EXISTS),
    ]


def test_a_key_needs_its_environment(apply):
    assert apply(key("a", "elsewhere")) == [Refused(entries.MISSING)]


def test_a_key_is_revoked_once(apply):
    apply(CreateEnvironment("default"), key("a"))
    assert apply(RevokeKey("a"), RevokeKey("a")) == [Done(2, 1), Refused(entries.MISSING)]


def test_there_are_bounds(apply, monkeypatch):
    monkeypatch.setattr(module, "ENVIRONMENTS_MAX", 1)
    monkeypatch.setattr(module, "KEYS_MAX", 1)
    apply(CreateEnvironment("default"), key("a"))
    assert apply(CreateEnvironment("other"), key("b")) == [Refused(entries.TOO_MANY, number=1)] * 2


def test_a_command_of_an_environment_is_damage(apply):
    with pytest.raises(CorruptDataError):
        apply(Clear(b""))
