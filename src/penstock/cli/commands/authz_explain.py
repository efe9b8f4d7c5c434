"""`penstock authz explain`."""

from collections.abc import Iterator
from typing import Any

import click

from penstock.authz.polar.explain import shown
from penstock.authz.polar.program import Signature
from penstock.cli.authz_calls import call_service, service_options
from penstock.cli.options import json_option, timeout_option
from penstock.cli.tables import print_json
from penstock.model.errors import InvalidRequestError


@click.command("explain")
@click.argument("actor")
@click.argument("action")
@click.argument("resource")
@service_options
@json_option
@timeout_option
def command(
    actor: str,
    action: str,
    resource: str,
    url: str,
    key_file: str,
    as_json: bool,
    timeout_s: float,
) -> None:
    """Say why ACTOR may do ACTION to RESOURCE, or which facts would allow it.

    ACTOR and RESOURCE are written TYPE:ID, as in `explain User:alice push Repository:anvil`.
    """
    (actor_type, actor_id), (resource_type, resource_id) = map(_value, (actor, resource))
    body = {
        "actor_type": actor_type,
        "actor_id": actor_id,
        "action": action,
        "resource_type": resource_type,
        "resource_id": resource_id,
    }
    found = call_service(
        "explain", url, key_file, "/api/explain", method="POST", body=body, timeout_s=timeout_s
    )
    if as_json:
        print_json(found)
        return
    for line in _lines(found):
        click.echo(line)


def _lines(found: dict[str, Any]) -> Iterator[str]:
    if found["allowed"]:
        yield "allowed:"
        for goal in found["because"]:
            yield from _tree(goal, 1)
        return
    yield "denied"
    if found["suggestions"]:
        yield "each of these would allow it:"
        for facts in found["suggestions"]:
            yield "  " + " and ".join(map(_goal, facts))
    if found["failures"]:
        yield "conditions that failed:"
        for text in found["failures"]:
            yield f"  {text}"
    if not found["complete"]:
        yield "the search ended before all was tried"


def _tree(goal: dict[str, Any], depth: int) -> Iterator[str]:
    where = "fact" if goal.get("fact") else f"line {goal['line']}" if goal["line"] else "implied"
    yield f"{'  ' * depth}{_goal(goal)}  [{where}]"
    for part in goal.get("because", ()):
        yield from _tree(part, depth + 1)


def _goal(goal: dict[str, Any]) -> str:
    types = tuple(each["type"] for each in goal["args"])
    return shown(Signature(goal["predicate"], types), tuple(each["id"] for each in goal["args"]))


def _value(text: str) -> tuple[str, str]:
    kind, colon, id_ = text.partition(":")
    if not colon or not kind or not id_:
        raise InvalidRequestError("read value", text, "it isn't TYPE:ID", "as in User:alice")
    return kind, id_
