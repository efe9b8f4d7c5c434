"""The command about quotas, which the journal orders. Pure.

See docs/quotas.md and docs/formats/journal.md, "Quotas". It is of QUOTAS_LEVEL.
"""

from typing import Final

from penstock.security.quota import QuotaChange
from penstock.state.command import Command

CHANGES_MAX: Final = 1_000
"""Changes that one command may name: applied in a few ms."""


class AlterQuotas(Command, frozen=True, tag="quota"):
    """Give keys of entities their values, or none. Answer: Done, or Refused(MALFORMED)."""

    changes: list[QuotaChange]
