"""Joins that differ in one condition become one, and no others."""

from penstock.authz.polar.conjunction import Conjunction
from penstock.authz.polar.merging import Selected, condition_text, merged


def join(sources, *conditions, outputs=("t1.a0",)):
    found = Conjunction(sources=sources, conditions=tuple((each,) for each in conditions))
    return Selected(outputs, found)


def test_constants_of_one_column_become_a_list():
    items = [
        join(("r AS t1",), "?1 = t1.a1", "?9 = t1.a2"),
        join(("r AS t2",), "?2 = t2.a1", "?9 = t2.a2", outputs=("t2.a0",)),
        join(("r AS t3",), "?3 = t3.a1", "?9 = t3.a2", outputs=("t3.a0",)),
    ]
    (item,) = merged(items)
    assert [condition_text(each) for each in item.found.conditions] == [
        "t1.a1 IN (?1, ?2, ?3)",
        "?9 = t1.a2",
    ]


def test_equal_joins_are_one():
    items = [
        join(
            (f"r AS {own}",),
            f"EXISTS (SELECT 1 FROM s AS {other} WHERE {own}.a0 = {other}.a0)",
            outputs=(f"{own}.a0",),
        )
        for own, other in (("t1", "t5"), ("t2", "t7"))
    ]
    assert merged(items) == items[:1]


def test_conditions_of_two_columns_stay_two_joins():
    items = [
        join(("r AS t1",), "?1 = t1.a1", "?9 = t1.a2"),
        join(("r AS t2",), "?1 = t2.a0", "?9 = t2.a2", outputs=("t2.a0",)),
    ]
    assert merged(items) == items


def test_names_from_around_a_join_are_not_its_own():
    """Two joins that look at different rows outside aren't equal."""
    items = [
        join(("r AS t1",), "t8.a0 = t1.a0", outputs=()),
        join(("r AS t2",), "t9.a0 = t2.a0", outputs=()),
    ]
    assert merged(items) == items


def test_what_a_join_leads_to_is_alternatives():
    items = [
        join(
            (f"r AS {own}",),
            f"?1 = {own}.a0",
            f"EXISTS (SELECT 1 FROM {table} AS {other} WHERE {own}.a1 = {other}.a0)",
            outputs=(),
        )
        for own, table, other in (("t1", "s", "t5"), ("t2", "z", "t7"))
    ]
    (item,) = merged(items)
    assert item.found.conditions[1] == (
        "EXISTS (SELECT 1 FROM s AS t5 WHERE t1.a1 = t5.a0)",
        "EXISTS (SELECT 1 FROM z AS t7 WHERE t1.a1 = t7.a0)",
    )


def test_single_facts_are_looked_up_one_by_one():
    items = [
        join(("r AS t1",), "?1 = t1.a0", "?2 = t1.a1", outputs=()),
        join(("r AS t2",), "?1 = t2.a0", "?3 = t2.a1", outputs=()),
    ]
    assert merged(items) == items
