"""Exports into one folder are kept apart, in a directory and in a bucket, whatever their order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from penstock.model.errors import ConflictError, FencedError, RetryableError
from penstock.pipeline.export_folder import MARKER_PREFIX, TRIES, ExportFolder, Marker
from penstock.pipeline.tables.files import FilesOptions, TableFiles
from support.s3 import S3Server

STARTED_MS = 1_790_000_000_000


class OpenJobs:
    """The journal's jobs, and what happens while one rests."""

    def __init__(self, *jobs: int) -> None:
        self.open = set(jobs)
        self.rests: list[int] = []
        self.on_rest: Callable[[int], object] = lambda _: None

    def is_job_open(self, job: int) -> bool:
        return job in self.open

    def rest(self, count: int) -> None:
        if count:
            self.rests.append(count)
            self.on_rest(count)


def marker(job: int, *, leader_epoch: int = 0, cluster_id: str = "c") -> Marker:
    return Marker(
        export_id=f"{job:032x}",
        cluster_id=cluster_id,
        leader_epoch=leader_epoch,
        job=job,
        host=f"host{job}",
        pid=100 + job,
        started_ms=STARTED_MS,
    )


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    server = S3Server(tmp_path_factory.mktemp("s3") / "log").start()
    yield server
    server.stop()


@pytest.fixture(params=["directory", "bucket"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "directory":
        return f"file://{tmp_path}/exports/flights"
    server: S3Server = request.getfixturevalue("s3")
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return f"s3://{server.make_bucket()}/exports/flights"


@pytest.fixture
def files() -> TableFiles:
    return TableFiles(FilesOptions())


def markers(files: TableFiles, url: str) -> list[str]:
    return [found.url for found in files.list(url) if MARKER_PREFIX in found.url]


def test_another_export_is_named_and_goes_on(files: TableFiles, url: str) -> None:
    jobs = OpenJobs(1, 2)
    with ExportFolder(files, url, marker(1), jobs) as first:
        for _ in range(2):
            with (
                pytest.raises(
                    ConflictError,
                    match=r"process 101 on host host1 .* since 2026-09-21 .*: its job 1 is open",
                ),
                ExportFolder(files, url, marker(2), jobs),
            ):
                raise AssertionError
        first.check()
        assert len(markers(files, url)) == 1
    assert markers(files, url) == []
    with ExportFolder(files, url, marker(2), jobs) as second:
        second.check()


def test_the_folder_of_an_export_that_is_gone_is_taken_over(files: TableFiles, url: str) -> None:
    jobs = OpenJobs(1, 2)
    gone = ExportFolder(files, url, marker(1), jobs)
    gone.__enter__()
    files.put(f"{url}/000000.parquet", b"rows")
    jobs.open.remove(1)
    with ExportFolder(files, url, marker(2), jobs) as successor:
        assert [found.url for found in successor.listed()] == [f"{url}/000000.parquet"]
        # It was only stopped, and goes on.
        with pytest.raises(FencedError, match="taken the folder over, since job 1 was over"):
            gone.check()
        gone.__exit__(None, None, None)
        successor.check()


@pytest.mark.parametrize("other", [{"cluster_id": "another"}, {"leader_epoch": 7}])
def test_the_export_of_another_log_is_never_taken_for_gone(
    files: TableFiles, tmp_path: Path, other: dict[str, int]
) -> None:
    """Its jobs aren't known here; a log that was restored has its parent's cluster id."""
    url = f"file://{tmp_path}"
    ExportFolder(files, url, marker(1, **other), OpenJobs()).__enter__()  # type: ignore[arg-type]
    left = markers(files, url)
    with (
        pytest.raises(ConflictError, match=f"job 1 of another log.* delete {left[0]}"),
        ExportFolder(files, url, marker(2), OpenJobs()),
    ):
        raise AssertionError
    assert markers(files, url) == left
    files.delete(left)
    with ExportFolder(files, url, marker(2), OpenJobs()):
        pass


def test_a_marker_that_nobody_can_read_keeps_others_out(files: TableFiles, tmp_path: Path) -> None:
    url = f"file://{tmp_path}"
    files.put(f"{url}/{MARKER_PREFIX}x.json", b"{}")
    with (
        pytest.raises(ConflictError, match=f"{MARKER_PREFIX}x.json is not a marker"),
        ExportFolder(files, url, marker(2), OpenJobs()),
    ):
        raise AssertionError


class Interleaved(TableFiles):
    """Calls `between` when a marker was put and nothing was listed yet."""

    between: Callable[[], object] = staticmethod(lambda: None)

    def put(self, url: str, body: bytes) -> None:
        super().put(url, body)
        self.between()


def test_of_two_that_begin_at_once_one_goes_on(files: TableFiles, tmp_path: Path) -> None:
    """Both markers are there when either looks."""
    url = f"file://{tmp_path}"
    jobs = OpenJobs(1, 2)
    one = Interleaved(FilesOptions())
    refused: list[ConflictError] = []

    def other() -> None:
        one.between = lambda: None
        with pytest.raises(ConflictError) as caught, ExportFolder(files, url, marker(2), jobs):
            raise AssertionError
        refused.append(caught.value)

    one.between = other
    with ExportFolder(one, url, marker(1), jobs) as first:
        first.check()
    assert "host1" in str(refused[0])
    assert jobs.rests == list(range(1, TRIES))


def test_one_that_met_another_s_marker_tries_again(files: TableFiles, tmp_path: Path) -> None:
    url = f"file://{tmp_path}"
    jobs = OpenJobs(1, 2)
    first = ExportFolder(files, url, marker(1), jobs)
    first.__enter__()
    jobs.on_rest = lambda count: count == 2 and first.__exit__(None, None, None)
    with ExportFolder(files, url, marker(2), jobs) as second:
        second.check()
    assert jobs.rests == [1, 2]


@pytest.mark.slow
def test_nothing_stays_where_the_journal_does_not_answer(files: TableFiles, tmp_path: Path) -> None:
    url = f"file://{tmp_path}"

    class Away(OpenJobs):
        def is_job_open(self, job: int) -> bool:
            raise RetryableError("look up job", str(job), "away")

    ExportFolder(files, url, marker(1), OpenJobs()).__enter__()
    with pytest.raises(RetryableError), ExportFolder(files, url, marker(2), Away()):
        raise AssertionError
    (left,) = markers(files, url)
    assert msgspec.json.decode(files.get(left), type=Marker).job == 1
