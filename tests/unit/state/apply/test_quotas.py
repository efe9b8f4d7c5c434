"""The command about quotas: what it changes, bounds, and that it means the same twice."""

from pathlib import Path

from penstock.security.quota import QuotaChange, QuotaEntity
from penstock.state.answers import Done, Refusal, Refused
from penstock.state.changes import QuotasChanged
from penstock.state.quota_commands import CHANGES_MAX, AlterQuotas
from penstock.state.read.queries import Queries
from penstock.state.read.view import StateView
from unit.state.orders import TestClock, open_order

USER, BOTH = QuotaEntity("u"), QuotaEntity("u", "")
RATE = "producer_byte_rate"


def test_quotas_are_set_changed_and_taken_away(tmp_path: Path) -> None:
    order = open_order(tmp_path, TestClock(5_000))
    wanted = [QuotaChange(USER, RATE, 5.0), QuotaChange(BOTH, "request_percentage", 0.5)]
    first = order.append([AlterQuotas(changes=wanted)])
    assert first.outcome.answers == [Done()]
    assert _changes(first) == [QuotasChanged(changes=wanted)]
    # What is so already is no change; of two values of a key the last one holds.
    again = order.append([AlterQuotas(changes=[*wanted, QuotaChange(USER, RATE, 6.0)])])
    assert _changes(again) == [QuotasChanged(changes=[QuotaChange(USER, RATE, 6.0)])]
    gone = [QuotaChange(BOTH, "request_percentage", None), QuotaChange(BOTH, "never", None)]
    last = order.append([AlterQuotas(changes=gone)])
    assert _changes(last) == [QuotasChanged(changes=gone[:1])]
    queries = Queries(tmp_path / "metadata.sqlite")
    assert queries.quotas() == [QuotaChange(USER, RATE, 6.0)]
    view = StateView.load(queries)
    assert dict(view.quotas.entities()) == {USER: {RATE: 6.0}}
    queries.close()
    order.close()


def test_what_is_not_valid_or_too_much_changes_nothing(tmp_path: Path) -> None:
    order = open_order(tmp_path, TestClock(5_000))
    good = QuotaChange(USER, RATE, 5.0)
    for changes in (
        [good, QuotaChange(USER, "nope", 1.0)],
        [good, QuotaChange(USER, RATE, float("nan"))],
        [good, QuotaChange(QuotaEntity(), RATE, None)],
        [good] * (CHANGES_MAX + 1),
    ):
        applied = order.append([AlterQuotas(changes=changes)])
        (answer,) = applied.outcome.answers
        assert isinstance(answer, Refused)
        assert answer.reason is Refusal.MALFORMED
        assert _changes(applied) == []
    order.close()


def _changes(applied: object) -> list[QuotasChanged]:
    changes = applied.outcome.changes  # type: ignore[attr-defined]
    return [one for one in changes if isinstance(one, QuotasChanged)]
