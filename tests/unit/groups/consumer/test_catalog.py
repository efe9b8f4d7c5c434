"""Regular expressions are RE2's: those that take long elsewhere are read in no time, or refused."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from penstock.groups.consumer.catalog import EXPRESSION_BYTES_MAX, ViewCatalog, regex_fault
from penstock.groups.consumer.messages import TopicShape
from unit.groups.fakes import world


@pytest.mark.parametrize(
    ("regex", "words"),
    [
        ("(a", "missing"),
        (r"(a)\1", "invalid escape"),
        ("a{1000}{1000}", "bad repetition"),
        ("(?=a)", "invalid perl operator"),
        ("a" * (EXPRESSION_BYTES_MAX + 1), "10001 characters, 10000 are allowed"),
    ],
)
def test_an_expression_that_is_refused_says_why(regex: str, words: str) -> None:
    assert words in (regex_fault(regex) or "")


async def test_topics_are_found_whole_by_name_and_anew_when_one_comes(tmp_path: Path) -> None:
    one = world(tmp_path)
    catalog = ViewCatalog(one.view)
    flights = one.topic("flights", 3)
    one.topic("flights-old")
    assert catalog.shape("flights") == TopicShape(bytes(flights.topic_id), 3)
    assert catalog.shape("none") is None
    assert catalog.matching("flights") == {"flights"}
    assert catalog.matching("fl.*") == {"flights", "flights-old"}
    before = catalog.generation
    one.topic("flowers")
    assert catalog.generation != before
    assert catalog.matching("fl.*") == {"flights", "flights-old", "flowers"}
    assert not catalog.matching("(a"), "taken by a release that could read it"
    await one.close()


async def test_a_hostile_expression_costs_no_more_than_its_length(tmp_path: Path) -> None:
    """`re` takes 2^249 steps for this name; here a step is one of some thousands."""
    one = world(tmp_path)
    one.topic("a" * 249)
    started = time.process_time()
    assert not ViewCatalog(one.view).matching("(a*)*b")
    assert time.process_time() - started < 5
    await one.close()
