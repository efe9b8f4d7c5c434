"""The journal in a PostgreSQL database, or one that speaks its protocol."""

from penstock.replica.postgres.begin import begin_journal
from penstock.replica.postgres.journal import PostgresJournal
from penstock.replica.postgres.settings import PostgresSettings

__all__ = ["PostgresJournal", "PostgresSettings", "begin_journal"]
