"""Names of principals, as Kafka writes them: a type, a colon, a name. Pure."""

from typing import Final

USER: Final = "User"
ANONYMOUS: Final = "User:ANONYMOUS"
"""The principal of a client that proves nothing."""


def of_user(name: str) -> str:
    """Return the principal of a user."""
    return f"{USER}:{name}"
