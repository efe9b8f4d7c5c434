"""Applying commands about access rules."""

from collections.abc import Sequence
from typing import Final

from msgspec.structs import astuple

from penstock.security.acl import AclBinding, binding_problem
from penstock.state.acl_commands import BINDINGS_MAX, CreateAcls, DeleteAcls
from penstock.state.answers import AnyAnswer, Done, Refusal, Refused
from penstock.state.apply.context import ApplyContext
from penstock.state.changes import AclsChanged

_INSERT: Final = "INSERT OR IGNORE INTO acls VALUES (?, ?, ?, ?, ?, ?, ?)"
_DELETE: Final = (
    "DELETE FROM acls WHERE resource_type = ? AND name = ? AND pattern_type = ? AND principal = ?"
    " AND host = ? AND operation = ? AND permission = ?"
)


def create_acls(context: ApplyContext, command: CreateAcls) -> AnyAnswer:
    """Insert what isn't there."""
    for binding in command.bindings:
        problem = binding_problem(binding)
        if problem is not None:
            return Refused(Refusal.MALFORMED, problem)
    return _change(context, command.bindings, inserts=True)


def delete_acls(context: ApplyContext, command: DeleteAcls) -> AnyAnswer:
    """Delete what is there."""
    return _change(context, command.bindings, inserts=False)


def _change(context: ApplyContext, bindings: Sequence[AclBinding], *, inserts: bool) -> AnyAnswer:
    if len(bindings) > BINDINGS_MAX:
        return Refused(
            Refusal.MALFORMED, f"{len(bindings)} bindings, {BINDINGS_MAX} are allowed at a time"
        )
    statement = _INSERT if inserts else _DELETE
    execute = context.tables.execute
    changed = [binding for binding in bindings if execute(statement, astuple(binding)).rowcount > 0]
    if changed:
        context.changes.append(
            AclsChanged(added=changed if inserts else [], removed=[] if inserts else changed)
        )
    return Done()
