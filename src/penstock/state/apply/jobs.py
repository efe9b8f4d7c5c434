"""Applying commands about jobs of the pipeline: which are open, and what that allows them.

An open job holds back the deletion of what was condemned since it began, and it alone may name the
objects that carry its number. So it ends one day whatever its owner does: when its lease is over,
or its greatest age.
"""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from penstock.segment import parse_job_key
from penstock.state.answers import (
    AnyAnswer,
    Done,
    JobOpened,
    Refusal,
    Refused,
)
from penstock.state.apply.context import ApplyContext
from penstock.state.apply.records import refuse_object
from penstock.state.meta import FEATURE_LEVEL, NEXT_JOB
from penstock.state.numbers import is_number
from penstock.state.pipeline_commands import CloseJob, OpenJob, OutputObject, RenewJob
from penstock.state.schema import PIPELINE_LEVEL, SECURITY_LEVEL
from penstock.state.tables import Tables

LEASE_MS_MAX: Final = 7 * 86_400_000
AGE_MS_MAX: Final = 30 * 86_400_000
OBJECT_BYTES_MAX: Final = 1 << 40
"""So that no sum of a partition's bytes is too large for SQLite."""


@dataclass(slots=True)
class JobRow:
    """An open job. `last_answer`: to its commit `last_n`; both empty before the first."""

    job: int
    opened_ms: int
    renewed_ms: int
    lease_ms: int
    age_max_ms: int
    last_n: int
    last_answer: bytes

    def is_over(self, time_ms: int) -> bool:
        """Whether anybody may close it, at a journal time."""
        return time_ms >= min(self.renewed_ms + self.lease_ms, self.opened_ms + self.age_max_ms)


def find_job(tables: Tables, job: int) -> JobRow | None:
    """An open job; None: it was closed, or never opened."""
    if not is_number(job, 1):
        return None
    found = tables.execute(
        "SELECT job, opened_ms, renewed_ms, lease_ms, age_max_ms, last_n, last_answer"
        " FROM pipeline_jobs WHERE job = ?",
        (job,),
    ).fetchone()
    return None if found is None else JobRow(*found)


def is_of_open_job(tables: Tables, key: str) -> bool:
    """Whether an object carries the number of a job that is open."""
    if tables.meta_int("feature_level") < PIPELINE_LEVEL:
        return False
    parts = parse_job_key(key)
    return parts is not None and find_job(tables, parts.job) is not None


def leave_jobs_behind(connection: sqlite3.Connection) -> None:
    """Close all jobs of a state that was restored: what they have put lies elsewhere. Writers stay,
    so that what they have committed is not stored twice."""
    connection.execute("DELETE FROM pipeline_jobs")


def unknown_job(job: int) -> Refused:
    """The refusal of whatever a closed job asks for."""
    return Refused(Refusal.UNKNOWN_JOB, f"job {job} was closed, or never opened")


def open_job(context: ApplyContext, command: OpenJob) -> AnyAnswer:
    """A new number."""
    tables = context.tables
    job = tables.meta_int(NEXT_JOB) or 1
    tables.set_meta(NEXT_JOB, job + 1)
    tables.execute(
        "INSERT INTO pipeline_jobs VALUES (?, ?, ?, ?, ?, ?, ?, ?, 0, x'', ?)",
        (
            job,
            command.kind,
            command.name,
            context.position,
            context.time_ms,
            context.time_ms,
            min(max(command.lease_ms, 0), LEASE_MS_MAX),
            min(max(command.age_max_ms, 0), AGE_MS_MAX),
            # An older release leaves the field out, so it counts from the level on alone.
            command.principal if tables.meta_int(FEATURE_LEVEL) >= SECURITY_LEVEL else "",
        ),
    )
    return JobOpened(job, context.position, context.time_ms)


def renew_job(context: ApplyContext, command: RenewJob) -> AnyAnswer:
    """Its lease begins again, unless it is too old."""
    row = find_job(context.tables, command.job)
    if row is None:
        return unknown_job(command.job)
    age_ms = context.time_ms - row.opened_ms
    if age_ms >= row.age_max_ms:
        return Refused(
            Refusal.JOB_TOO_OLD, f"it was opened {age_ms} ms ago, at most is {row.age_max_ms}"
        )
    context.tables.execute(
        "UPDATE pipeline_jobs SET renewed_ms = ? WHERE job = ?", (context.time_ms, row.job)
    )
    return Done()


def close_job(context: ApplyContext, command: CloseJob) -> AnyAnswer:
    """End a job: its owner may at any time, others once its lease is over."""
    row = find_job(context.tables, command.job)
    if row is None:
        return Done()
    seen_ms = command.seen_renewed_ms
    if seen_ms != -1 and (seen_ms != row.renewed_ms or not row.is_over(context.time_ms)):
        return Refused(
            Refusal.JOB_IS_ALIVE,
            f"renewed at {row.renewed_ms} for {row.lease_ms} ms, seen was {seen_ms}, now it is"
            f" {context.time_ms}",
        )
    context.tables.execute("DELETE FROM pipeline_jobs WHERE job = ?", (row.job,))
    return Done()


def save_commit(tables: Tables, job: int, n: int, answer: AnyAnswer) -> None:
    """Keep the answer to a job's last numbered commit."""
    tables.execute(
        "UPDATE pipeline_jobs SET last_n = ?, last_answer = ? WHERE job = ?",
        (n, tables.encode_answers([answer]), job),
    )


def last_commit(tables: Tables, row: JobRow) -> AnyAnswer:
    """The answer to a job's last numbered commit; there was one."""
    (answer,) = tables.decode_answers(row.last_answer)
    return answer


def refuse_objects(
    context: ApplyContext, job: int, objects: Sequence[OutputObject]
) -> Refused | None:
    """Say why a job may not name objects now; None: it may name all of them."""
    seen: set[str] = set()
    for listed in objects:
        key = parse_job_key(listed.key)
        if key is None or key.job != job:
            return Refused(Refusal.INVALID_OBJECT, f"{listed.key} isn't an object of job {job}")
        if listed.key in seen or not is_number(listed.size_bytes, 0, OBJECT_BYTES_MAX):
            return Refused(
                Refusal.INVALID_OBJECT, f"{listed.key} is listed twice, or {listed.size_bytes} long"
            )
        seen.add(listed.key)
        refusal = refuse_object(context, listed.key)
        if refusal is not None:
            return refusal
    return None
