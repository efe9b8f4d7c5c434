"""Each route has its rule, the rules are those of the page, and no route is left open."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from penstock.app.http.guard import guarded
from penstock.app.http.rules import RULES, Rule
from penstock.security.acl import Operation

PAGE = Path(__file__).resolve().parents[4] / "docs" / "security.md"


async def _nothing(_: Request) -> Response:
    return PlainTextResponse("")


def test_a_route_without_a_rule_is_not_served() -> None:
    with pytest.raises(AssertionError, match="has no rule"):
        guarded([Route("/v1/new", _nothing)])
    with pytest.raises(AssertionError, match="several rules"):
        guarded([Route("/v1/keys", _nothing, methods=["GET", "POST"])])


def test_the_page_has_each_rule_as_the_code_has_it() -> None:
    rows = re.findall(
        r"^\| `(GET|POST|PUT|DELETE) (\S+)` \| (.*?) \|$", PAGE.read_text(), re.MULTILINE
    )
    assert {(method, path): needs for method, path, needs in rows} == {
        (method, path.replace(":int", "").replace(":path", "").replace(":str", "")): _needs(rule)
        for (method, path), rule in RULES.items()
    }


def test_health_alone_is_open() -> None:
    assert [key for key, rule in RULES.items() if rule.open] == [("GET", "/healthz")]
    for key, rule in RULES.items():
        assert rule.open or rule.cluster is not None or rule.items, key


def test_what_changes_anything_needs_more_than_describe() -> None:
    for (method, path), rule in RULES.items():
        if rule.administers and not rule.items:
            assert rule.cluster is Operation.ALTER, (method, path)


def _needs(rule: Rule) -> str:
    cluster = f"{rule.cluster.name} on the cluster" if rule.cluster is not None else ""
    return "; ".join(filter(None, (cluster, rule.items))) or "nothing"
