"""Messages between the scheduler and its engine process come out as they went in."""

import pytest

from penstock.model.errors import (
    FencedError,
    InvalidRequestError,
    NotFoundError,
    PenstockError,
    RetryableError,
    StorageFullError,
)
from penstock.pipeline.api_messages import JobRequest
from penstock.pipeline.client import ClientOptions
from penstock.pipeline.engine_choice import EngineChoice
from penstock.pipeline.engine_process import messages as m
from penstock.pipeline.jobs import Job, JobKind, JobSettings
from penstock.pipeline.tables.settings import CatalogSettings

START = m.Start(
    EngineChoice(name="spark", master="local[2]", conf={"a": "b"}),
    ClientOptions(urls=("http://a:1",), secret_file="/run/secret"),
    JobSettings(maintenance={"files_min": 3}, catalog=CatalogSettings(warehouse="w")),
)
EACH: list[m.Message] = [
    START,
    m.Ready("engine spark", [1, 2]),
    m.FailedStart(m.RETRY, "no Java"),
    m.Alive({"a": 1}),
    m.EngineLost("Java ended"),
    m.Run(7, Job(kind=JobKind.TABLE, topic="flights")),
    m.StopJob(7),
    m.Done(7, {"rows": 3, "offsets": {"0": 4}, "lost": []}),
    m.Failed(7, "no agent"),
    m.OpenLease(1, JobRequest(kind="table", name="x", lease_ms=5)),
    m.Lease(1, 2, 3, 4, 5),
    m.LeaseRefused(1, "ConflictError", ("a", "b", "c", "")),
    m.LeaseLost(2, "closed"),
    m.CloseLease(2),
    m.Stop(),
]


@pytest.mark.parametrize("message", EACH, ids=lambda message: type(message).__name__)
def test_each_comes_out_as_it_went_in(message: m.Message) -> None:
    data = m.encode(message)
    assert m.length_of(data[: m.LENGTH_BYTES]) == len(data) - m.LENGTH_BYTES
    assert m.decode(data[m.LENGTH_BYTES :]) == message


def test_the_page_names_each_message() -> None:
    from support.server import REPOSITORY

    page = (REPOSITORY / "docs" / "formats" / "engine-process.md").read_text()
    for message in EACH:
        tag = type(message).__struct_config__.tag
        assert f"| `{tag}` |" in page, tag


@pytest.mark.parametrize("body", [b"", b"\xff", b"\x93\xa3run", m.encode(START)[4:-1]])
def test_what_is_not_one_is_our_error(body: bytes) -> None:
    with pytest.raises(InvalidRequestError, match="receive a message"):
        m.decode(body)


def test_a_length_above_the_bound_is_refused_before_it_is_read() -> None:
    with pytest.raises(InvalidRequestError, match="announces"):
        m.length_of((m.MESSAGE_BYTES_MAX + 1).to_bytes(4, "big"))


def test_a_summary_that_is_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(m, "MESSAGE_BYTES_MAX", 10)
    with pytest.raises(InvalidRequestError, match="more than 10"):
        m.encode(m.Done(1, {"rows": "x" * 20}))


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (NotFoundError("a", "b", "c", "d"), NotFoundError),
        (FencedError("a", "b", "c"), FencedError),
        (StorageFullError("a", "b", "c"), RetryableError),
        (PenstockError("a", "b", "c"), RetryableError),
    ],
)
def test_a_lease_is_refused_by_the_error_that_it_was(
    error: PenstockError, kind: type[PenstockError]
) -> None:
    again = m.refused_error(m.refusal(4, error))
    assert type(again) is kind
    assert str(again) == str(error)
