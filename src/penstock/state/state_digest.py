"""The digest of a replica's state, as the journal carries it (docs/formats/journal.md)."""

from typing import Final

from msgspec import Struct

DIGEST_BYTES: Final = 32
DIGESTED_TABLES_MAX: Final = 100
TABLE_NAME_CHARACTERS_MAX: Final = 64


class StateDigest(Struct, frozen=True, array_like=True, kw_only=True):
    """One replica's digests. Only those of one version, level and format say anything of one
    another."""

    digest_version: int
    """Version of what is hashed (`penstock.replica.dump.DIGEST_VERSION`)."""
    feature_level: int
    """The level that is on, as the replica has it."""
    format_version: int
    """Version of the replica's tables."""
    tables: list[tuple[str, bytes]]
    """SHA-256 of each table's rows, by name, sorted."""
