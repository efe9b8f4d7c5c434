"""The commands about access rules, which the journal orders. Pure.

See docs/acls.md and docs/formats/journal.md, "Access rules". Both are of ACLS_LEVEL.
"""

from typing import Final

from penstock.security.acl import AclBinding
from penstock.state.command import Command

BINDINGS_MAX: Final = 1_000
"""Bindings that one command may name: applied in a few ms."""


class CreateAcls(Command, frozen=True, tag="acl+"):
    """Add bindings; those that are there already stay. Answer: Done, or Refused(MALFORMED)."""

    bindings: list[AclBinding]


class DeleteAcls(Command, frozen=True, tag="acl-"):
    """Remove bindings; those that aren't there are passed over. Answer: Done, or
    Refused(MALFORMED)."""

    bindings: list[AclBinding]
