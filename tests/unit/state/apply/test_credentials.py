"""Commands about credentials: what they change, bounds, and what is stored of a password."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.security.scram.credential import ScramMechanism
from penstock.state.answers import Done, Refusal, Refused
from penstock.state.changes import CredentialChanged
from penstock.state.packed_changes import pack_changes, unpack_changes
from penstock.state.read.queries import Queries
from penstock.state.read.view import StateView
from penstock.state.security_commands import DeleteCredential, SaveCredential
from unit.state.orders import TestClock, open_order

BOTH = tuple(ScramMechanism)


def saved(user: str = "alice", mechanism: int = 1, **changes: Any) -> SaveCredential:
    size = 32 if mechanism == 1 else 64
    made = SaveCredential(
        user=user,
        mechanism=mechanism,
        iterations=4096,
        salt=b"salt",
        stored_key=b"s" * size,
        server_key=b"k" * size,
    )
    return msgspec.structs.replace(made, **changes)


def test_credentials_are_kept_changed_and_forgotten(tmp_path: Path) -> None:
    order = open_order(tmp_path, TestClock(5_000))
    view = StateView()
    seen = view.revocations
    for command in (saved(), saved(mechanism=2), saved(iterations=5000), saved("bob")):
        applied = order.append([command])
        assert applied.outcome.answers == [Done()]
        view.apply(applied.outcome.changes)
    assert {user: tuple(own) for user, own in view.credentials.items()} == {
        "alice": BOTH,
        "bob": (ScramMechanism.SHA_256,),
    }
    assert view.credentials["alice"][ScramMechanism.SHA_256].iterations == 5000
    assert (view.credential_count, view.revocations) == (3, seen)
    gone = order.append([DeleteCredential(user="bob", mechanism=1)])
    view.apply(gone.outcome.changes)
    assert (view.credential_count, view.revocations) == (2, seen + 1)
    queries = Queries(tmp_path / "metadata.sqlite")
    loaded = StateView.load(queries)
    assert loaded.credentials == view.credentials
    assert loaded.credential_count == 2
    queries.close()
    order.close()


def test_what_is_not_there_is_not_deleted(tmp_path: Path) -> None:
    order = open_order(tmp_path, TestClock(5_000))
    order.append([saved()])
    for command in (
        DeleteCredential(user="alice", mechanism=2),
        DeleteCredential(user="bob", mechanism=1),
    ):
        applied = order.append([command])
        (answer,) = applied.outcome.answers
        assert isinstance(answer, Refused)
        assert answer.reason is Refusal.UNKNOWN_CREDENTIAL
        assert _changes(applied) == []
    order.close()


@pytest.mark.parametrize(
    "changes",
    [
        {"user": ""},
        {"user": "x" * 256},
        {"mechanism": 0},
        {"mechanism": 3},
        {"iterations": 4095},
        {"iterations": 16385},
        {"salt": b""},
        {"salt": b"x" * 256},
        {"stored_key": b"s" * 31},
        {"server_key": b"s" * 64},
    ],
)
def test_what_is_not_valid_changes_nothing(tmp_path: Path, changes: dict[str, Any]) -> None:
    order = open_order(tmp_path, TestClock(5_000))
    applied = order.append([saved(**changes)])
    (answer,) = applied.outcome.answers
    assert isinstance(answer, Refused)
    assert answer.reason is Refusal.MALFORMED
    assert _changes(applied) == []
    order.close()


def test_workers_tell_one_another_of_credentials(tmp_path: Path) -> None:
    order = open_order(tmp_path, TestClock(5_000))
    made = order.append([saved(), DeleteCredential(user="alice", mechanism=1)])
    changes = _changes(made)
    assert [change.credential is None for change in changes] == [False, True]
    assert unpack_changes(pack_changes(changes)) == changes
    order.close()


def test_a_credential_shows_no_key(tmp_path: Path) -> None:
    order = open_order(tmp_path, TestClock(5_000))
    (change,) = _changes(order.append([saved()]))
    assert "ssss" not in repr(change)
    assert "kkkk" not in repr(change)
    order.close()


def _changes(applied: Any) -> list[CredentialChanged]:
    return [one for one in applied.outcome.changes if isinstance(one, CredentialChanged)]
