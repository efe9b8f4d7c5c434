"""Applying the command about quotas."""

from typing import Final

import msgspec

from penstock.security.quota import QuotaChange, QuotaEntity, entity_problem, value_problem
from penstock.state.answers import AnyAnswer, Done, Refusal, Refused
from penstock.state.apply.context import ApplyContext
from penstock.state.changes import QuotasChanged
from penstock.state.quota_commands import CHANGES_MAX, AlterQuotas

SELECT_QUOTAS: Final = "SELECT entity, key, value FROM quotas ORDER BY entity, key"
_decode_entity = msgspec.json.Decoder(QuotaEntity).decode


def quota_of_row(row: tuple[str, str, float]) -> QuotaChange:
    """Return a row of `SELECT_QUOTAS` as the change that makes it."""
    entity, key, value = row
    return QuotaChange(_decode_entity(entity), key, value)


def alter_quotas(context: ApplyContext, command: AlterQuotas) -> AnyAnswer:
    """Change all, or nothing."""
    if len(command.changes) > CHANGES_MAX:
        return Refused(
            Refusal.MALFORMED, f"{len(command.changes)} changes, {CHANGES_MAX} are allowed at once"
        )
    for change in command.changes:
        problem = entity_problem(change.entity) or value_problem(change)
        if problem is not None:
            return Refused(Refusal.MALFORMED, problem)
    execute = context.tables.execute
    made = []
    for change in command.changes:
        entity = msgspec.json.encode(change.entity).decode()
        if change.value is None:
            where = (entity, change.key)
            done = execute("DELETE FROM quotas WHERE entity = ? AND key = ?", where)
        else:
            # Nothing changes where the value is there already.
            done = execute(
                "INSERT INTO quotas VALUES (?, ?, ?) ON CONFLICT (entity, key) DO UPDATE"
                " SET value = excluded.value WHERE value != excluded.value",
                (entity, change.key, change.value),
            )
        if done.rowcount > 0:
            made.append(change)
    if made:
        context.changes.append(QuotasChanged(changes=made))
    return Done()
