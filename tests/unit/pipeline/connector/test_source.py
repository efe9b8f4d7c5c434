import pytest
from pyspark.sql.datasource import CaseInsensitiveDict

from penstock.model.errors import InvalidRequestError
from penstock.pipeline.connector import PenstockDataSource


def source(**options: str) -> PenstockDataSource:
    given = {"url": "http://a:1", "subscribe": "t"} | options
    return PenstockDataSource(CaseInsensitiveDict(given))


def test_the_schema_is_that_of_the_columns_asked_for():
    assert source(columns="offset,key").schema() == "`offset` bigint, `key` binary"


def test_a_misspelt_option_fails_when_the_dataframe_is_made():
    with pytest.raises(InvalidRequestError, match="did you mean includeHeaders"):
        source(includeHeader="true").schema()


def test_options_of_a_stream_are_known_before_it_is_known_to_be_one():
    assert source(maxOffsetsPerTrigger="5", startingOffsets="latest").schema()
