"""A pin is a job that holds a topic and its table as they are while a reader reads both.

docs/tables.md, "One view of table and log", says what it holds back.
"""

import logging
from collections.abc import Sequence
from typing import Final

from pyiceberg.table.snapshots import SnapshotLogEntry

from penstock.model.errors import InvalidRequestError
from penstock.model.table_names import PIN_JOB
from penstock.pipeline.api_messages import JobRequest
from penstock.pipeline.client import PipelineClient
from penstock.system.heard import Cause, heard

logger = logging.getLogger(__name__)

_CLOCKS_MS: Final = 60_000
"""The driver that commits a snapshot and the journal may differ in time by so much."""


PIN_AGE_MS: Final = 7 * 86_400_000
"""No pin is renewed past it: agents let no job grow older."""


def pin_once(client: PipelineClient, topic_id: str, *, lease_ms: int) -> int:
    """Pin a topic for a lease, which only a stream renews; the job's number."""
    request = JobRequest(kind=PIN_JOB, name=topic_id, lease_ms=lease_ms, age_max_ms=PIN_AGE_MS)
    return client.open_job(request).job


def pinned_since_ms(client: PipelineClient, topic_id: str) -> int | None:
    """The journal time at which a topic's oldest open pin began; None: it has none."""
    try:
        jobs = client.jobs()
    except InvalidRequestError as error:
        heard(Cause.JOB_LEASE, error, logger, "an agent of an older release lists no pins")
        return None
    return min(
        (job.opened_ms for job in jobs if job.kind == PIN_JOB and job.name == topic_id),
        default=None,
    )


def kept_from_ms(log: Sequence[SnapshotLogEntry], pinned_ms: int) -> int:
    """Return the time from which on a table's snapshots stay: that of the one which was current
    when the pin began.

    Args:
        log: which snapshot became the current one when, the oldest first.
    """
    certain_ms = pinned_ms - _CLOCKS_MS
    return max(
        (entry.timestamp_ms for entry in log if entry.timestamp_ms <= certain_ms),
        default=certain_ms,
    )
