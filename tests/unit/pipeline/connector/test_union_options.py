"""Options of a view of table and log are checked before anything is asked."""

import pytest

from penstock.model.errors import InvalidRequestError
from penstock.pipeline.connector.table_options import UNION, view_of
from penstock.pipeline.connector.union_options import log_options, parse_union

GIVEN = {"view": "table+log", "url": "http://a:1", "subscribe": "flights"}


def test_a_view_needs_a_topic_and_an_agent_alone() -> None:
    options = parse_union(GIVEN, mode="batch")
    assert view_of(GIVEN) == UNION
    assert (options.topic, options.table, options.api.urls) == ("flights", "", ("http://a:1",))
    assert (options.lease_ms, options.fails_on_loss, options.columns) == (3_600_000, True, None)
    given = {**GIVEN, "columns": "a, b", "failOnDataLoss": "false", "leaseMs": "1000"}
    options = parse_union(given, mode="batch")
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
        parse_union({**GIVEN, **changes}, mode="any")


def test_a_streams_options_are_of_streams_alone() -> None:
    given = {**GIVEN, "maxOffsetsPerTrigger": "7", "maxFilesPerTrigger": "2"}
    options = parse_union(given, mode="stream")
    assert (options.rows_max, options.files_max) == (7, 2)
    assert parse_union(GIVEN, mode="stream").files_max == 1000
    assert parse_union(given, mode="any").rows_max == 7, "load() doesn't know what it is for"
    for name in ("maxOffsetsPerTrigger", "maxFilesPerTrigger"):
        with pytest.raises(InvalidRequestError, match=f"{name}: a batch has no triggers"):
            parse_union({**GIVEN, name: "7"}, mode="batch")
    with pytest.raises(InvalidRequestError, match="pushes no filters to a stream"):
        parse_union({**GIVEN, "filterPushdown": "true"}, mode="stream")


def test_the_logs_part_is_planned_as_any_stream_of_the_log_is() -> None:
    given = {**GIVEN, "url": "http://a:1,http://b:2", "failOnDataLoss": "false"}
    options = parse_union(given, mode="stream")
    log = log_options(options)
    assert (log.api, log.names) == (options.api, ("flights",))
    assert not log.fail_on_data_loss
