"""Commands about access rules: what they change, bounds, and that they mean the same twice."""

from pathlib import Path

from penstock.security.acl import AclBinding
from penstock.state.acl_commands import BINDINGS_MAX, CreateAcls, DeleteAcls
from penstock.state.answers import Done, Refusal, Refused
from penstock.state.changes import AclsChanged
from penstock.state.packed_changes import pack_changes, unpack_changes
from penstock.state.read.queries import Queries
from penstock.state.read.view import StateView
from support.acls import acl
from unit.state.orders import TestClock, open_order


def test_rules_are_there_once_and_gone_once(tmp_path: Path) -> None:
    order = open_order(tmp_path, TestClock(5_000))
    first = order.append([CreateAcls(bindings=[acl(), acl(name="u"), acl()])])
    again = order.append([CreateAcls(bindings=[acl()])])
    assert first.outcome.answers == again.outcome.answers == [Done()]
    assert _changes(first) == [AclsChanged(added=[acl(), acl(name="u")], removed=[])]
    assert _changes(again) == []
    gone = order.append([DeleteAcls(bindings=[acl(), acl(name="v")])])
    assert _changes(gone) == [AclsChanged(added=[], removed=[acl()])]
    queries = Queries(tmp_path / "metadata.sqlite")
    assert queries.acls() == [acl(name="u")]
    view = StateView.load(queries)
    assert set(view.acls.bindings()) == {acl(name="u")}
    queries.close()
    order.close()


def test_what_is_not_valid_or_too_much_changes_nothing(tmp_path: Path) -> None:
    order = open_order(tmp_path, TestClock(5_000))
    many = [acl(name=f"t{number}") for number in range(BINDINGS_MAX + 1)]
    for command in (
        CreateAcls(bindings=[acl(), acl(kind=0)]),
        CreateAcls(bindings=many),
        DeleteAcls(bindings=many),
    ):
        applied = order.append([command])
        (answer,) = applied.outcome.answers
        assert isinstance(answer, Refused)
        assert answer.reason is Refusal.MALFORMED
        assert _changes(applied) == []
    order.close()


def test_workers_tell_one_another_of_rules() -> None:
    change = AclsChanged(added=[acl()], removed=[acl(name="u", host="10.0.0.0/8")])
    (found,) = unpack_changes(pack_changes([change]))
    assert found == change
    assert isinstance(found, AclsChanged)
    assert all(type(binding) is AclBinding for binding in found.added)


def _changes(applied: object) -> list[AclsChanged]:
    return [one for one in applied.outcome.changes if isinstance(one, AclsChanged)]  # type: ignore[attr-defined]
