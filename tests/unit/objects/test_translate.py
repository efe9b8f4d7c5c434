"""Errors of buckets say in words what failed: obstore's own text is Rust's."""

import asyncio
from collections.abc import Callable

import pytest

from penstock.model.errors import NotFoundError, OverloadedError, PenstockError, RetryableError
from penstock.objects import open_store
from penstock.objects.translate import translate_obstore_error
from support.http_stub import Agent
from support.ports import free_port


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], PenstockError]:
    """Give the error of a read of a bucket whose endpoint is at a URL."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_REGION", "us-east-1")

    def fail(endpoint: str) -> PenstockError:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        with pytest.raises(PenstockError) as raised:
            asyncio.run(open_store("s3://bucket/prefix").put("k", [b"x"]))
        return raised.value

    return fail


def test_a_store_that_does_not_run_can_not_be_reached(
    failing: Callable[[str], PenstockError],
) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    assert str(failing(url)) == (
        f"put k: {url} can't be reached (is the endpoint right, and does the store run?)"
    )


@pytest.mark.parametrize(
    ("status", "body", "kind", "said"),
    [
        (
            403,
            b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>",
            RetryableError,
            "answered 403 Forbidden: AccessDenied: Access Denied (the credentials may not do this)",
        ),
        (
            404,
            b"<Error><Code>NoSuchBucket</Code><Message>No bucket</Message></Error>",
            NotFoundError,
            "answered 404 Not Found: NoSuchBucket: No bucket",
        ),
        (
            503,
            b"<Error><Code>SlowDown</Code></Error>",
            OverloadedError,
            "answered 503 Service Unavailable: SlowDown",
        ),
        (500, b"oops", RetryableError, "answered 500 Internal Server Error: oops"),
        (500, b"<html>", RetryableError, "answered 500 Internal Server Error"),
        (
            301,
            b"",
            RetryableError,
            "says that the bucket is elsewhere (set the bucket's region, AWS_REGION)",
        ),
    ],
)
def test_what_a_store_answers_is_said_with_its_status_and_code(
    failing: Callable[[str], PenstockError],
    status: int,
    body: bytes,
    kind: type[PenstockError],
    said: str,
) -> None:
    store = Agent(lambda *_: (status, body))
    try:
        error = failing(store.url)
    finally:
        store.close()
    assert type(error) is kind
    assert str(error) == f"put k: {store.url} {said}"


def test_without_credentials_the_error_says_so() -> None:
    text = (
        "Generic S3 error: Error performing PUT http://169.254.169.254/latest/api/token in 610.7µs"
        " - Server returned non-2xx status code: 403 Forbidden: denied\n\nDebug source:\nGeneric {"
    )
    error = translate_obstore_error("look up", "manifest.json", Exception(text))
    assert "no credentials are set" in str(error)
    assert "169.254" not in str(error)


def test_a_user_in_an_endpoint_is_not_repeated() -> None:
    text = "Generic S3 error: Error performing GET http://me:pass@host:1/b/k in 1µs - odd"
    error = translate_obstore_error("read", "k", Exception(text))
    assert str(error) == "read k: http://host:1: odd"


def test_other_texts_stay_as_far_as_their_first_line() -> None:
    error = translate_obstore_error("read", "k", ValueError("out of range\n\nDebug source: {}"))
    assert str(error) == "read k: out of range"
