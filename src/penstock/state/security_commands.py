"""The commands about credentials and API keys, which the journal orders. Pure.

See docs/security.md and docs/formats/journal.md, "Credentials". All are of SECURITY_LEVEL.
"""

from typing import Final

from penstock.security.api_key import ApiKey
from penstock.state.command import Command

USER_NAME_LENGTH_MAX: Final = 255
SALT_BYTES_MAX: Final = 255
CREDENTIALS_MAX: Final = 100_000
"""Credentials of a cluster: each agent keeps them in memory. The handler holds to it, by what its
agent has applied, so that agents which save at the same moment may exceed it by a request each:
counting rows in each command would take longer than the command."""


class SaveCredential(Command, frozen=True, tag="scram+"):
    """Keep a user's credential for one mechanism of SCRAM, in place of the one before.

    Answer: Done, or Refused (MALFORMED).
    """

    user: str
    mechanism: int
    """A `penstock.security.scram.credential.ScramMechanism`."""
    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes


class DeleteCredential(Command, frozen=True, tag="scram-"):
    """Forget a user's credential for one mechanism of SCRAM.

    Answer: Done, or Refused (UNKNOWN_CREDENTIAL).
    """

    user: str
    mechanism: int


API_KEYS_MAX: Final = 10_000
"""API keys of a cluster, which each agent keeps in memory. As with credentials, the call that
makes keys holds to it."""


class SaveApiKey(Command, frozen=True, tag="key+"):
    """Keep an API key. Answer: Done, or Refused (MALFORMED, also where the id is taken)."""

    key: ApiKey


class DeleteApiKey(Command, frozen=True, tag="key-"):
    """Forget an API key. Answer: Done, or Refused (UNKNOWN_CREDENTIAL)."""

    key_id: str
