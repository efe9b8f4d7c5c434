"""What options of reads and of writes have in common."""

import pytest

from penstock.model.errors import InvalidRequestError
from penstock.pipeline.connector.given_options import GivenOptions

KNOWN = ("url", "batchBytes")


def refusal(given: GivenOptions, *known: str) -> str:
    with pytest.raises(InvalidRequestError) as caught:
        given.refuse_unknown(known)
    return str(caught.value)


@pytest.mark.parametrize("operation", ["read", "write"])
def test_an_unknown_option_is_refused_in_the_operation_s_name(operation: str):
    said = refusal(GivenOptions(operation, {"batchByte": "1"}), *KNOWN)
    assert said.startswith(f"{operation} option batchbyte")
    assert "did you mean batchBytes?" in said
    said = refusal(GivenOptions(operation, {"kafka.acks": "all"}), *KNOWN)
    assert f"no Kafka client takes part in this {operation}" in said


def test_what_is_known_or_let_be_is_not_refused():
    GivenOptions("read", {"URL": "x", "path": "y"}).refuse_unknown(KNOWN, {"path"})


def test_the_api_is_what_was_given_or_the_defaults():
    api = GivenOptions("read", {"url": "http://a:1 , https://b", "TIMEOUTMS": "1500"}).api()
    assert api.urls == ("http://a:1", "https://b")
    assert (api.objects, api.secret_file) == ("auto", "")
    assert (api.timeout_s, api.deadline_s) == (1.5, 120.0)


@pytest.mark.parametrize("url", ["http://me:hunter2@a", "me:hunter2@a"])
def test_a_password_in_a_url_is_not_repeated(url: str):
    with pytest.raises(InvalidRequestError) as caught:
        GivenOptions("write", {"url": url}).api()
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(("text", "fine"), [("4", True), ("5", True), ("6", False), ("x", False)])
def test_bounds_of_whole_numbers(text: str, fine: bool):
    given = GivenOptions("write", {"n": text})
    if fine:
        assert given.integer("N", 1, least=4, most=5) == int(text)
    else:
        with pytest.raises(InvalidRequestError, match="not a whole number from 4 to 5"):
            given.integer("N", 1, least=4, most=5)
    assert given.integer("other", 7, least=0) == 7
