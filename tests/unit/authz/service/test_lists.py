"""Pages of lists: complete, of one list, bounded."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.authz.service.lists import KEPT_S, Lists
from penstock.authz.service.wire import LimitError
from penstock.model.errors import InvalidRequestError

IDS = [f"id-{number}" for number in range(10)]


def pages(lists, ids, page, *, key="k", now_s=0.0):
    found, token = lists.first(key, b"q", ids, page, now_s)
    yield found
    while token is not None:
        found, token = lists.following(key, b"q", token, now_s)
        yield found


@given(st.integers(0, 30), st.integers(1, 12))
def test_pages_give_the_list_in_order(count, page):
    ids = [str(number) for number in range(count)]
    found = list(pages(Lists("i"), ids, page))
    assert [id_ for each in found for id_ in each] == ids
    assert all(len(each) == page for each in found[:-1])


def test_a_page_can_be_asked_again():
    lists = Lists("i")
    _, token = lists.first("k", b"q", IDS, 4, 0.0)
    assert lists.following("k", b"q", token, 0.0) == lists.following("k", b"q", token, 1.0)


@pytest.mark.parametrize(
    ("key", "question", "token", "now_s"),
    [
        ("other", b"q", "i.1.4", 0.0),
        ("k", b"other", "i.1.4", 0.0),
        ("k", b"q", "j.1.4", 0.0),
        ("k", b"q", "i.2.4", 0.0),
        ("k", b"q", "i.1.5", 0.0),
        ("k", b"q", "i.1.0", 0.0),
        ("k", b"q", "i.1.40", 0.0),
        ("k", b"q", "i.1.-4", 0.0),
        ("k", b"q", "", 0.0),
        ("k", b"q", "i.1.4" + "x" * 200, 0.0),
        ("k", b"q", "i.1.4", KEPT_S + 1),
    ],
)
def test_any_other_token_is_refused(key, question, token, now_s):
    lists = Lists("i")
    assert lists.first("k", b"q", IDS, 4, 0.0)[1] == "i.1.4"
    with pytest.raises(InvalidRequestError):
        lists.following(key, question, token, now_s)


def test_the_oldest_lists_leave_the_room_to_new_ones():
    lists = Lists("i", bytes_max=1_500)
    tokens = [lists.first("k", b"q", IDS, 4, float(n))[1] for n in range(3)]
    with pytest.raises(InvalidRequestError):
        lists.following("k", b"q", tokens[0], 3.0)
    assert lists.following("k", b"q", tokens[2], 3.0)[0] == IDS[4:8]


def test_a_list_that_has_no_room_at_all_is_refused():
    with pytest.raises(LimitError):
        Lists("i", bytes_max=100).first("k", b"q", IDS, 4, 0.0)
