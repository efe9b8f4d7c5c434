"""Applying commands about API keys."""

from typing import Final

from penstock.security.api_key import ApiKey, key_problem
from penstock.state.answers import AnyAnswer, Done, Refusal, Refused
from penstock.state.apply.context import ApplyContext
from penstock.state.changes import ApiKeyChanged
from penstock.state.security_commands import DeleteApiKey, SaveApiKey

SELECT_API_KEYS: Final = (
    "SELECT key_id, digest, principal, note, expires FROM api_keys ORDER BY key_id"
)


def api_key_of_row(row: tuple[str, bytes, str, str, int]) -> ApiKey:
    """Return a row of `SELECT_API_KEYS` as a value."""
    key_id, digest, principal, note, expires_ms = row
    return ApiKey(
        key_id=key_id, digest=digest, principal=principal, note=note, expires_ms=expires_ms
    )


def save_api_key(context: ApplyContext, command: SaveApiKey) -> AnyAnswer:
    """Keep a key under its id, which no key has."""
    key = command.key
    problem = key_problem(key)
    if problem:
        return Refused(Refusal.MALFORMED, problem)
    done = context.tables.execute(
        "INSERT OR IGNORE INTO api_keys VALUES (?, ?, ?, ?, ?)",
        (key.key_id, key.digest, key.principal, key.note, key.expires_ms),
    )
    if not done.rowcount:
        # Another secret under the id of a key would change who holds a key that is in use.
        return Refused(Refusal.MALFORMED, "another key has this id")
    context.changes.append(ApiKeyChanged(key_id=key.key_id, key=key))
    return Done()


def delete_api_key(context: ApplyContext, command: DeleteApiKey) -> AnyAnswer:
    """Forget a key."""
    found = context.tables.execute("DELETE FROM api_keys WHERE key_id = ?", (command.key_id,))
    if not found.rowcount:
        return Refused(Refusal.UNKNOWN_CREDENTIAL, "there is no such API key")
    context.changes.append(ApiKeyChanged(key_id=command.key_id, key=None))
    return Done()
