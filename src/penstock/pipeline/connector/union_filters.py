"""Spark's filters on both sides of a view of table and log. Pure.

Of a table with one row per key those about the key alone: which row of a key counts isn't known
before both sides have met, and its other columns say nothing until then.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from pyiceberg.expressions import BooleanExpression

from penstock.pipeline.api_messages import Range
from penstock.pipeline.connector import table_filters
from penstock.pipeline.connector.read_filters import Pushed, push

_PLACES: Final = ("partition", "offset")


@dataclass(frozen=True, slots=True, kw_only=True)
class UnionFilters:
    """The filters that are heeded before rows are read. Spark checks all of them again.

    Args:
        rows: what each row of use passes.
        places: where such rows of the log lie.
    """

    rows: BooleanExpression
    places: Pushed

    def cut(self, wanted: Range) -> Range | None:
        """Return the part of a range that is of use; None: nothing of it is."""
        start, end = max(wanted.start, self.places.start), min(wanted.end, self.places.end)
        if start >= end or not self.places.takes("", wanted.partition):
            return None
        return Range(wanted.topic_id, wanted.partition, start, end)


def union_filters(filters: Sequence[Any], *, prefix: str, is_upsert: bool) -> UnionFilters:
    """Divide `pyspark.sql.datasource.Filter`s, which all must hold.

    Args:
        prefix: of the columns that every record has.
    """
    if is_upsert:
        key = f"{prefix}key"
        about_key = [one for one in filters if getattr(one, "attribute", ())[:1] == (key,)]
        return UnionFilters(rows=table_filters.push(about_key), places=Pushed())
    places, _ = push(list(_about_places(filters, prefix)))
    return UnionFilters(rows=table_filters.push(filters), places=places)


def _about_places(filters: Sequence[Any], prefix: str) -> Iterator[Any]:
    """The filters about partitions and offsets, by the names that the log's own view has."""
    names: dict[tuple[str, ...], tuple[str]] = {(f"{prefix}{name}",): (name,) for name in _PLACES}
    for one in filters:
        named: tuple[str, ...] = getattr(one, "attribute", ())
        if len(named) == 1 and named in names:
            yield replace(one, attribute=names[named])
