"""The buckets of a process: each client's own, with the rate that holds now, and not too many."""

import pytest

from penstock.kafka.quotas import quotas as quotas_module
from penstock.kafka.quotas.bucket import Bucket
from penstock.kafka.quotas.quotas import BURST_S, Quotas
from penstock.security.quota import PRODUCER_BYTE_RATE, QuotaChange, QuotaEntity
from penstock.security.quota_index import QuotaIndex
from support.simulated.clock import ManualClock


def limit(index: QuotaIndex, rate: float | None) -> None:
    index.change([QuotaChange(QuotaEntity(None, ""), PRODUCER_BYTE_RATE, rate)])


def bucket(quotas: Quotas, client_id: str | None) -> Bucket:
    found = quotas.bucket(PRODUCER_BYTE_RATE, "User:u", client_id)
    assert found is not None
    return found


def test_another_rate_holds_at_once_for_clients_that_are_measured() -> None:
    index, clock = QuotaIndex(), ManualClock()
    quotas = Quotas(index, clock)
    assert not quotas.is_on
    assert quotas.bucket(PRODUCER_BYTE_RATE, "User:u", "a") is None
    limit(index, 100.0)
    assert quotas.is_on
    first = bucket(quotas, "a")
    first.take(100 * BURST_S + 500, clock.monotonic_s())
    assert bucket(quotas, "a") is first
    assert bucket(quotas, "b") is not first
    assert bucket(quotas, None) is bucket(quotas, ""), "no client id is an empty one"
    limit(index, 10.0)
    assert bucket(quotas, "a") is first
    assert first.size == 10 * BURST_S
    limit(index, None)
    assert quotas.bucket(PRODUCER_BYTE_RATE, "User:u", "a") is None


def test_what_is_owed_outlives_a_sweep_and_full_buckets_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas_module, "BUCKETS_MAX", 3)
    index, clock = QuotaIndex(), ManualClock()
    limit(index, 100.0)
    quotas = Quotas(index, clock)
    owing = bucket(quotas, "owing")
    owing.take(5_000, clock.monotonic_s())
    for number in range(1_000):
        bucket(quotas, f"client {number}")
        assert len(quotas._buckets) <= 4
    assert bucket(quotas, "owing") is owing
