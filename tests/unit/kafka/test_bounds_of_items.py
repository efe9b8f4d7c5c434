"""What is reserved for an answer grows with what its request names."""

from types import SimpleNamespace
from typing import Any

import pytest

from penstock.kafka import answer_bounds
from penstock.kafka.answer_bounds import (
    BASE_BYTES,
    CONFIGS_FROM,
    NODE_BYTES,
    REPEATED,
    TEXT_BYTES,
    bound_of,
    text_bytes,
)

CONFIGS = [
    SimpleNamespace(name="a.config", value="12"),
    SimpleNamespace(name="another", value=None),
]
CONFIGS_BYTES = (5 + 8) + (5 + 2) + 4 + (5 + 7) + 2 + 4


@pytest.fixture(autouse=True)
def _configs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_bounds, "topic_entries", lambda own, cluster: CONFIGS)


def bound(module: str, frame_bytes: int, *, version: int = 0, **fields: Any) -> int:
    view = SimpleNamespace(cluster_configs={})
    context: Any = SimpleNamespace(api_version=version, broker=SimpleNamespace(view=view))
    return bound_of(context, module, SimpleNamespace(**fields), frame_bytes)


@pytest.mark.parametrize("text", ["", "abc", "ä", "日本", "\U0001f600" * 9, "a" * 300])
def test_a_string_takes_its_utf8_and_its_length_at_most(text: str) -> None:
    assert text_bytes(text) >= len(text.encode()) + 5
    assert text_bytes("a" * 100) == 105
    assert text_bytes(None) == 2


@pytest.mark.parametrize("module", sorted(answer_bounds._ECHOES))
def test_items_that_are_answered_by_numbers_count_by_the_request_s_bytes(module: str) -> None:
    assert bound(module, 0) == BASE_BYTES
    assert bound(module, 1000) == BASE_BYTES + 1000 * answer_bounds._ECHOES[module]


@pytest.mark.parametrize(("module", "items"), sorted(answer_bounds._MESSAGES.items()))
def test_each_item_may_get_a_message_and_is_repeated(module: str, items: tuple[str, ...]) -> None:
    for name in items:
        assert bound(module, 100, **{name: []}) == BASE_BYTES + REPEATED * 100
        assert bound(module, 0, **{name: [1, 2, 3]}) == BASE_BYTES + 3 * TEXT_BYTES


def test_created_topics_are_answered_with_their_configs_from_one_version_on() -> None:
    before = bound("create_topics", 0, version=CONFIGS_FROM - 1, topics=[1, 2])
    since = bound("create_topics", 0, version=CONFIGS_FROM, topics=[1, 2])
    assert since - before == 2 * CONFIGS_BYTES
    assert bound("create_partitions", 0, version=CONFIGS_FROM, topics=[1, 2]) == before


def test_deleted_topics_count_by_whichever_list_names_them() -> None:
    by_name = bound("delete_topics", 7, topic_names=[1, 2])
    assert by_name == BASE_BYTES + 7 * REPEATED + 2 * TEXT_BYTES
    assert bound("delete_topics", 7, topics=[1, 2]) == by_name
    assert bound("delete_topics", 7, topics=[], topic_names=[1, 2]) == by_name


def test_each_coordinator_has_a_host_and_perhaps_a_message() -> None:
    each = NODE_BYTES + TEXT_BYTES
    assert bound("find_coordinator", 7) == BASE_BYTES + 14 + each, "the versions of one key"
    assert bound("find_coordinator", 7, coordinator_keys=[1, 2]) == BASE_BYTES + 14 + 3 * each


def test_answers_of_the_catalog_are_bounded_elsewhere() -> None:
    assert bound("metadata", 1000) == 0
