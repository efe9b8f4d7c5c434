"""The secret opens, and shows nowhere."""

import pytest

from penstock.model.errors import InvalidRequestError
from penstock.peers import ClusterSecret

TEXT = "correct-horse-battery-staple"


def test_only_the_secret_is_accepted() -> None:
    secret = ClusterSecret(TEXT)
    assert secret.accepts(secret.header)
    assert secret.accepts(f"bearer  {TEXT} ".encode())
    for wrong in (
        None,
        "",
        "Bearer",
        "Bearer ",
        TEXT,
        f"Basic {TEXT}",
        f"Bearer {TEXT}x",
        f"Bearer {TEXT[:-1]}",
        f"Bearer {TEXT.upper()}",
        "Bearer \u00e9",
        b"Bearer \xff\xfe",
    ):
        assert not secret.accepts(wrong), wrong


def test_it_is_in_no_text() -> None:
    secret = ClusterSecret(TEXT)
    for shown in (repr(secret), str(secret), f"{secret}", repr([secret])):
        assert TEXT not in shown


@pytest.mark.parametrize("text", ["", "short", "with space in the middle", "zeile\numbruch" * 3])
def test_what_cannot_be_one_is_refused_without_being_told(text: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        ClusterSecret(text)
    if text:
        assert text not in str(caught.value)
