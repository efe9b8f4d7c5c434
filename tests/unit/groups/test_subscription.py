"""Reading topics from a consumer's metadata: of every version, and of garbage."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.groups.subscription import subscribed_topics
from unit.groups.fakes import subscription


@given(st.lists(st.text(min_size=1, max_size=20)), st.integers(0, 3), st.binary())
def test_topics_are_read_whatever_a_later_version_appends(
    topics: list[str], version: int, more: bytes
) -> None:
    metadata = version.to_bytes(2, "big") + subscription(*topics)[2:] + more
    assert subscribed_topics(metadata) == set(topics)


@given(st.binary())
def test_any_bytes_are_topics_or_nothing(metadata: bytes) -> None:
    topics = subscribed_topics(metadata)
    assert topics is None or all(isinstance(topic, str) for topic in topics)


@pytest.mark.parametrize(
    "metadata",
    [
        b"",
        b"\0",
        b"\xff\xff\0\0\0\0",
        b"\0\0\xff\xff\xff\xff",
        b"\0\0\0\0\0\1\0\5abc",
        b"\0\0\0\0\0\1\xff\xff",
        b"\0\0\0\0\0\1\0\1\xff",
        b"\0\0\x7f\xff\xff\xff",
    ],
)
def test_what_is_not_a_subscription_is_none(metadata: bytes) -> None:
    assert subscribed_topics(metadata) is None
