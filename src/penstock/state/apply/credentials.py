"""Applying commands about credentials of users."""

from typing import Final

from penstock.security.scram.credential import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    ScramCredential,
    ScramMechanism,
)
from penstock.state.answers import AnyAnswer, Done, Refusal, Refused
from penstock.state.apply.context import ApplyContext
from penstock.state.changes import CredentialChanged
from penstock.state.security_commands import (
    SALT_BYTES_MAX,
    USER_NAME_LENGTH_MAX,
    DeleteCredential,
    SaveCredential,
)

SELECT_CREDENTIALS: Final = (
    "SELECT user_name, mechanism, iterations, salt, stored_key, server_key FROM credentials"
    " ORDER BY user_name, mechanism"
)
_MECHANISMS: Final = frozenset(ScramMechanism)


def credential_of_row(
    row: tuple[str, int, int, bytes, bytes, bytes],
) -> tuple[str, ScramCredential]:
    """Return a row of `SELECT_CREDENTIALS` as a user's name and a value."""
    user, mechanism, iterations, salt, stored_key, server_key = row
    return user, ScramCredential(
        mechanism=ScramMechanism(mechanism),
        iterations=iterations,
        salt=salt,
        stored_key=stored_key,
        server_key=server_key,
    )


def save_credential(context: ApplyContext, command: SaveCredential) -> AnyAnswer:
    """Keep a credential, in place of the one before."""
    malformed = _malformed(command)
    if malformed:
        return Refused(Refusal.MALFORMED, malformed)
    context.tables.execute(
        "INSERT OR REPLACE INTO credentials VALUES (?, ?, ?, ?, ?, ?)",
        (
            command.user,
            command.mechanism,
            command.iterations,
            command.salt,
            command.stored_key,
            command.server_key,
        ),
    )
    credential = ScramCredential(
        mechanism=ScramMechanism(command.mechanism),
        iterations=command.iterations,
        salt=command.salt,
        stored_key=command.stored_key,
        server_key=command.server_key,
    )
    context.changes.append(
        CredentialChanged(user=command.user, mechanism=credential.mechanism, credential=credential)
    )
    return Done()


def delete_credential(context: ApplyContext, command: DeleteCredential) -> AnyAnswer:
    """Forget a credential."""
    found = context.tables.execute(
        "DELETE FROM credentials WHERE user_name = ? AND mechanism = ?",
        (command.user, command.mechanism),
    )
    if not found.rowcount:
        return Refused(Refusal.UNKNOWN_CREDENTIAL, "the user has no such credential")
    context.changes.append(
        CredentialChanged(
            user=command.user, mechanism=ScramMechanism(command.mechanism), credential=None
        )
    )
    return Done()


def _malformed(command: SaveCredential) -> str:
    """Say what can't be kept; "": all can."""
    if not 0 < len(command.user) <= USER_NAME_LENGTH_MAX:
        return f"a user's name of {len(command.user)} characters"
    if command.mechanism not in _MECHANISMS:
        return f"mechanism {command.mechanism} is unknown"
    if not ITERATIONS_MIN <= command.iterations <= ITERATIONS_MAX:
        return f"{command.iterations} iterations, allowed are {ITERATIONS_MIN} to {ITERATIONS_MAX}"
    if not 0 < len(command.salt) <= SALT_BYTES_MAX:
        return f"a salt of {len(command.salt)} bytes, allowed are 1 to {SALT_BYTES_MAX}"
    key_bytes = ScramMechanism(command.mechanism).key_bytes
    if len(command.stored_key) != key_bytes or len(command.server_key) != key_bytes:
        return f"keys of {len(command.stored_key)} and {len(command.server_key)} bytes"
    return ""
