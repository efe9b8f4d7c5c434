"""Objects put and read through the pipeline API, and past it."""

import os
from pathlib import Path

import pytest

from penstock.model.errors import FencedError, InvalidRequestError, NotFoundError
from penstock.pipeline.client import ClientOptions, PipelineClient, RefusedError
from penstock.pipeline.lease import JobLease
from penstock.pipeline.objects import ObjectAccess
from support.api_server import ApiServer, new_key, serve_in_thread


@pytest.mark.slow
def test_objects_are_put_once_and_read_by_ranges(api: ApiServer) -> None:
    with JobLease(api.client, kind="test", name="tests") as job:
        objects = ObjectAccess(api.client)
        key = new_key(job.job)
        body = os.urandom(20 << 20)
        objects.put(key, [body[: 9 << 20], memoryview(body)[9 << 20 :]])
        assert objects.get_range(key, 0, len(body)) == body
        wanted = [(key, 5, 9), (key, 0, 3), (key, 19 << 20, 20 << 20), (key, 7, 7)]
        assert objects.get_views(wanted) == [body[start:end] for _, start, end in wanted]
        with pytest.raises(RefusedError) as caught:
            objects.put(key, [b"another"])
        assert caught.value.reason == "object_exists"
        assert objects.get_range(key, 0, 5) == body[:5]
        with pytest.raises(NotFoundError):
            objects.get_range(new_key(job.job), 0, 5)
        with pytest.raises(InvalidRequestError):
            objects.put("segments/00/foreign.seg", [b"x"])
        with pytest.raises(InvalidRequestError):
            objects.get_range("archive/1", 0, 5)
        with pytest.raises(InvalidRequestError):
            objects.get_range("segments/../lock", 0, 5)
    with pytest.raises(FencedError):
        objects.put(new_key(job.job), [b"x"])


def test_an_object_over_the_limit_is_refused(tmp_path: Path) -> None:
    with (
        serve_in_thread(tmp_path / "data", pipeline_object_bytes_max=1 << 20) as api,
        JobLease(api.client, kind="test", name="tests") as job,
    ):
        objects = ObjectAccess(api.client)
        objects.put(new_key(job.job), [bytes(1 << 20)])
        with pytest.raises(InvalidRequestError, match="pipeline_object_bytes_max"):
            objects.put(new_key(job.job), [bytes((1 << 20) + 1)])


def test_ambient_access_reads_files_and_puts_through_the_agent(api: ApiServer) -> None:
    options = ClientOptions(urls=api.client.options.urls, objects="ambient")
    with (
        PipelineClient(options) as client,
        ObjectAccess(client) as objects,
        JobLease(client, kind="test", name="tests") as job,
    ):
        key = new_key(job.job)
        objects.put(key, [b"0123456789"])
        assert objects.get_views([(key, 2, 5), (key, 8, 10)]) == [b"234", b"89"]
        with pytest.raises(NotFoundError):
            objects.get_range(new_key(job.job), 0, 1)
