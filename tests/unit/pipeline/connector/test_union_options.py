"""Options of a view of table and log are checked before anything is asked."""

import pytest

from penstock.model.errors import InvalidRequestError
from penstock.pipeline.connector.table_options import UNION, view_of
from penstock.pipeline.connector.union_options import parse_union

GIVEN = {"view": "table+log", "url": "http://a:1", "subscribe": "flights"}


def test_a_view_needs_a_topic_and_an_agent_alone() -> None:
    options = parse_union(GIVEN)
    assert view_of(GIVEN) == UNION
    assert (options.topic, options.table, options.api.urls) == ("flights", "", ("http://a:1",))
    assert (options.lease_ms, options.fails_on_loss, options.columns) == (3_600_000, True, None)
    given = {**GIVEN, "columns": "a, b", "failOnDataLoss": "false", "leaseMs": "1000"}
    options = parse_union(given)
    assert (options.lease_ms, options.fails_on_loss, options.columns) == (1000, False, ("a", "b"))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"subscribe": "a,b"}, "a view of table and log is of one topic"),
        ({"subscribe": ""}, "a view of table and log is of one topic"),
        ({"url": ""}, "option url"),
        ({"leaseMs": "0"}, "from 1000 to 3600000"),
        ({"snapshotId": "1"}, "it is unknown"),
        ({"startingOffsets": "earliest"}, "it is unknown"),
        ({"catalogProperties": '{"token": "t"}'}, "PYICEBERG_CATALOG__PENSTOCK__TOKEN"),
    ],
)
def test_what_is_wrong_is_said(changes: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidRequestError, match=says):
        parse_union({**GIVEN, **changes})
