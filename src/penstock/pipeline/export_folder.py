"""One export at a time into a folder: the marker that each leaves there while it writes.

A marker's name holds its export's random id, so that each is only ever put, read and deleted, and
the stores need no conditional put: an export puts its own, then lists all. Of two at once at least
one sees the other's, whatever the order of their calls. It takes its own away and tries again after
a random time; an export that is past this keeps its marker to its end. (One key that is put only
where there is nothing would have to be deleted when its owner is gone, and a second successor might
delete the first one's.)

An export is known to be gone when its job is no longer open, which the journal says. What such a
process could still do, were it only stopped for longer than its lease, it looks for before its
manifest: its lease, and whether its marker is still there.
"""

import logging
from datetime import UTC, datetime
from types import TracebackType
from typing import Final, Protocol, Self

import msgspec

from penstock.model.errors import ConflictError, FencedError, NotFoundError, PenstockError
from penstock.model.malformed import MALFORMED
from penstock.pipeline.lease import LEASE_MS
from penstock.pipeline.tables.files import ListedFile, TableFiles
from penstock.system.heard import Cause, heard

logger = logging.getLogger(__name__)

MARKER_PREFIX: Final = "_penstock_exporting_"
"""Its underscore keeps Spark and its like from reading it as data."""
MARKER_VERSION: Final = 1
TRIES: Final = 4


class Marker(msgspec.Struct, frozen=True, kw_only=True):
    """Names the writer of a folder. `leader_epoch` distinguishes a restored log from its parent,
    which has the same cluster id; `started_ms`: journal time, since the epoch."""

    version: int = MARKER_VERSION
    export_id: str
    cluster_id: str
    leader_epoch: int
    job: int
    host: str
    pid: int
    started_ms: int


class Jobs(Protocol):
    """The part of `penstock.pipeline.client.PipelineClient` that is used here."""

    def is_job_open(self, job: int) -> bool:
        """Whether a job goes on, by the journal's head."""
        ...

    def rest(self, count: int) -> None:
        """Wait a random time that grows with `count`; 0: not at all."""
        ...


class ExportFolder:
    """A folder that this export alone writes into, as a context manager.

    Raises (on entering):
        ConflictError: another export writes into it, or may: the error names it.
        RetryableError: the store or the agents don't answer.
    """

    def __init__(self, files: TableFiles, url: str, own: Marker, jobs: Jobs) -> None:
        self._files = files
        self._url = url
        self._own = own
        self._own_url = f"{url}/{MARKER_PREFIX}{own.export_id}.json"
        self._jobs = jobs

    def __enter__(self) -> Self:
        try:
            self._take()
        except BaseException:
            self._let_go()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._let_go()

    def check(self) -> None:
        """
        Raises:
            FencedError: another export took the folder over.
        """
        try:
            self._files.get(self._own_url)
        except NotFoundError as error:
            raise FencedError(
                "export",
                self._url,
                f"another export has taken the folder over, since job {self._own.job} was over",
                "start it again",
            ) from error

    def listed(self) -> list[ListedFile]:
        """List the folder's files, without markers."""
        return [found for found in self._files.list(self._url) if not _is_marker(found.url)]

    def _take(self) -> None:
        body = msgspec.json.encode(self._own)
        for count in range(TRIES):
            self._jobs.rest(count)
            self._files.put(self._own_url, body)
            others = [
                found.url
                for found in self._files.list(self._url)
                if _is_marker(found.url) and found.url != self._own_url
            ]
            refusals = [refusal for url in others if (refusal := self._refusal(url)) is not None]
            if not refusals:
                self._files.delete(others)
                return
            self._files.delete([self._own_url])
        raise refusals[0]

    def _refusal(self, url: str) -> ConflictError | None:
        """Return the error if another export's marker keeps this one out; None: that export is
        over."""
        try:
            marker = msgspec.json.decode(self._files.get(url), type=Marker)
        except NotFoundError:
            return None
        except MALFORMED as error:
            return self._refused(
                f"{url} is not a marker that this release can read: {error}",
                "delete it once no export writes there",
            )
        since = datetime.fromtimestamp(marker.started_ms / 1000, UTC)
        text = (
            f"process {marker.pid} on host {marker.host} has been exporting into it since "
            f"{since:%Y-%m-%d %H:%M:%S} UTC"
        )
        own = self._own
        if (marker.cluster_id, marker.leader_epoch) != (own.cluster_id, own.leader_epoch):
            return self._refused(
                f"{text}, as job {marker.job} of another log, cluster {marker.cluster_id}",
                f"export into another folder, or delete {url} once that export is over",
            )
        if self._jobs.is_job_open(marker.job):
            return self._refused(
                f"{text}: its job {marker.job} is open",
                "wait for its end, or export into another folder; a job whose process is gone "
                f"is over after {LEASE_MS // 60_000} minutes, and the next export goes on",
            )
        logger.warning("%s: %s, and its job %d is over", self._url, text, marker.job)
        return None

    def _refused(self, detail: str, hint: str) -> ConflictError:
        return ConflictError("export", self._url, detail, hint)

    def _let_go(self) -> None:
        try:
            self._files.delete([self._own_url])
        except PenstockError as error:
            # The export's job is about to end, so the marker keeps no other export out.
            heard(Cause.REMOVE_FILE, error, logger, "the marker of this export stays")


def _is_marker(url: str) -> bool:
    return url.rpartition("/")[2].startswith(MARKER_PREFIX)
