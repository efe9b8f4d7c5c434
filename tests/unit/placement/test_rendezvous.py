"""Rendezvous hashing: everybody computes the same owner, and few keys move."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from penstock.placement.rendezvous import owner_of, ranked, score

MEMBERS = st.lists(st.integers(1, (1 << 31) - 1), min_size=1, max_size=12, unique=True)
KEYS = [f"key {number}".encode() for number in range(2000)]


def test_the_hash_is_written_down():
    """A release with another hash would disagree with the one beside it during an upgrade."""
    assert score(b"shard 7", 42) == 14848116156352279570
    assert owner_of(b"shard 7", [1, 2, 3]) == 1


def test_nobody_owns_anything_among_no_members():
    assert owner_of(b"key", []) is None
    assert owner_of(b"key", [], {1: 2.0}) is None


@given(MEMBERS, st.binary(max_size=40), st.randoms())
def test_the_order_of_members_does_not_matter(members, key, random):
    shuffled = list(members)
    random.shuffle(shuffled)
    assert owner_of(key, members) == owner_of(key, shuffled)
    assert ranked(key, members) == ranked(key, shuffled)
    assert owner_of(key, members) == owner_of(key, members, dict.fromkeys(members, 3.5))


@given(MEMBERS, st.binary(max_size=40))
def test_the_next_in_rank_inherits(members, key):
    order = ranked(key, members)
    while order:
        assert owner_of(key, order) == order[0]
        order = order[1:]


@given(MEMBERS, st.integers(1, (1 << 31) - 1))
def test_a_new_member_only_takes(members, new):
    for key in KEYS[:50]:
        before, after = owner_of(key, members), owner_of(key, [*members, new])
        assert after in (before, new)


def test_keys_are_shared_evenly():
    shares = Counter(owner_of(key, [5, 6, 7, 8]) for key in KEYS)
    assert all(400 < shares[member] < 600 for member in (5, 6, 7, 8))


def test_weights_are_shares():
    shares = Counter(owner_of(key, [5, 6, 7], {5: 2.0, 7: 0.0}) for key in KEYS)
    assert shares[7] == 0
    assert 1200 < shares[5] < 1470


def test_a_member_of_no_weight_is_the_last_resort():
    assert owner_of(b"key", [5], {5: 0.0}) == 5
