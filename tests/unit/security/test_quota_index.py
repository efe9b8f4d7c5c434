"""Which quota holds for a client, against a list that is searched in Kafka's order."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from penstock.security import quota_index
from penstock.security.quota import (
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    PRODUCER_BYTE_RATE,
    QuotaChange,
    QuotaEntity,
    entity_problem,
    value_problem,
)
from penstock.security.quota_index import Limit, QuotaIndex

USERS = CLIENTS = (None, "", "a", "b")
ENTITIES = [QuotaEntity(*names) for names in itertools.product(USERS, CLIENTS)][1:]
changes = st.lists(
    st.builds(
        QuotaChange,
        entity=st.sampled_from(ENTITIES),
        key=st.sampled_from([PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE]),
        value=st.sampled_from([None, 1.0, 2.0, 3.0]),
    ),
    max_size=20,
)


def naive(quotas: dict[tuple[QuotaEntity, str], float], key: str, user: str, client: str):
    """Kafka's order, written out."""
    order = [
        (user, client),
        (user, ""),
        (user, None),
        ("", client),
        ("", ""),
        ("", None),
        (None, client),
        (None, ""),
    ]
    for own_user, own_client in order:
        rate = quotas.get((QuotaEntity(own_user, own_client), key))
        if rate is not None:
            shared = QuotaEntity(
                None if own_user is None else user, None if own_client is None else client
            )
            return Limit(rate, shared)
    return None


def test_limits_are_kept_at_hand_for_so_many_clients(monkeypatch):
    monkeypatch.setattr(quota_index, "FOUND_MAX", 3)
    index = QuotaIndex()
    index.change([QuotaChange(QuotaEntity(None, ""), PRODUCER_BYTE_RATE, 5.0)])
    for client in range(100):
        for _ in range(2):
            found = index.limit(PRODUCER_BYTE_RATE, "u", str(client))
            assert found == Limit(5.0, QuotaEntity(None, str(client)))
        assert len(index._found) <= 3


@given(changes, changes)
def test_the_most_specific_quota_of_a_key_holds(first, then):
    index = QuotaIndex()
    index.replace(first)
    for user, client in itertools.product(("a", "b"), ("a", "b")):
        index.limit(PRODUCER_BYTE_RATE, user, client)
    index.change(then)
    quotas: dict[tuple[QuotaEntity, str], float] = {}
    for change in (*first, *then):
        quotas.pop((change.entity, change.key), None)
        if change.value is not None:
            quotas[change.entity, change.key] = change.value
    found = {(entity, key): own[key] for entity, own in index.entities() for key in own}
    assert found == quotas
    assert len(index) == len({entity for entity, _ in quotas})
    for key in (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE):
        assert index.has(key) == any(one == key for _, one in quotas)
        # A client without an id is one whose id is empty.
        for user, client in itertools.product(("a", "b", "c"), ("a", "b", "c", "")):
            assert index.limit(key, user, client) == naive(quotas, key, user, client)


def test_a_default_is_a_limit_for_each_client():
    index = QuotaIndex()
    index.change([QuotaChange(QuotaEntity("", None), PRODUCER_BYTE_RATE, 5.0)])
    one, other = (index.limit(PRODUCER_BYTE_RATE, user, "c") for user in "ab")
    assert one is not None
    assert other is not None
    assert one.shared_by != other.shared_by
    assert index.limit(PRODUCER_BYTE_RATE, "a", "d") == one, "a user's clients share it"


def test_addresses_are_found_however_they_are_spelled():
    index = QuotaIndex()
    index.change(
        [
            QuotaChange(QuotaEntity(ip="2001:db8::1"), CONNECTION_CREATION_RATE, 3.0),
            QuotaChange(QuotaEntity(ip=""), CONNECTION_CREATION_RATE, 7.0),
        ]
    )
    assert index.connection_limit("2001:DB8:0::1") == Limit(3.0, QuotaEntity(ip="2001:db8::1"))
    assert index.connection_limit("10.0.0.1") == Limit(7.0, QuotaEntity(ip="10.0.0.1"))
    assert QuotaIndex().connection_limit("10.0.0.1") is None


def test_what_no_quota_can_be():
    for entity, word in (
        (QuotaEntity(), "empty"),
        (QuotaEntity("u", None, "10.0.0.1"), "alone"),
        (QuotaEntity(ip="db1.example"), "IP address"),
        (QuotaEntity("u" * 2_001), "2000"),
    ):
        assert word in (entity_problem(entity) or "")
    for good in (QuotaEntity(""), QuotaEntity("u", ""), QuotaEntity(ip=""), QuotaEntity(ip="::1")):
        assert entity_problem(good) is None
    user, address = QuotaEntity("u"), QuotaEntity(ip="::1")
    for entity, key, value, word in (
        (user, "nope", 1.0, "unknown"),
        (user, CONNECTION_CREATION_RATE, 1.0, "unknown"),
        (address, PRODUCER_BYTE_RATE, 1.0, "unknown"),
        (user, PRODUCER_BYTE_RATE, 0.0, "above 0"),
        (user, PRODUCER_BYTE_RATE, -1.0, "above 0"),
        (user, PRODUCER_BYTE_RATE, float("nan"), "above 0"),
        (user, "request_percentage", float("inf"), "above 0"),
        (user, PRODUCER_BYTE_RATE, 1.5, "whole"),
        (user, PRODUCER_BYTE_RATE, 1e19, "greatest"),
        (address, CONNECTION_CREATION_RATE, 2.0**31, "greatest"),
    ):
        assert word in (value_problem(QuotaChange(entity, key, value)) or ""), (key, value)
    for key, value in (("request_percentage", 0.5), (PRODUCER_BYTE_RATE, 1e15), ("nope", None)):
        assert value_problem(QuotaChange(user, key, value)) is None
