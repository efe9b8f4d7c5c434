"""An open loop keeps to its plan, also after a call that took long."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.cli.load.pacing import paced


class Time:
    """A clock that only sleeping and sending move."""

    def __init__(self) -> None:
        self.now_ns = 0

    def read(self) -> int:
        return self.now_ns

    def sleep(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9)


@given(
    took_ms=st.lists(st.integers(0, 50), min_size=1, max_size=40),
    rate_per_s=st.sampled_from([50, 100, 1000]),
)
def test_a_call_is_made_when_it_is_due_or_when_the_call_before_it_has_ended(
    took_ms: list[int], rate_per_s: int
) -> None:
    time = Time()
    begun_ns: list[int] = []

    def send(index: int) -> None:
        begun_ns.append(time.now_ns)
        time.now_ns += took_ms[index] * 1_000_000

    late_ns = paced(
        send, rate_per_s=rate_per_s, count=len(took_ms), now_ns=time.read, sleep=time.sleep
    )
    start_ns = begun_ns[0]
    ended_ns = start_ns
    late_ns_wanted = 0
    for index, begun in enumerate(begun_ns):
        due_ns = start_ns + index * 1_000_000_000 // rate_per_s
        assert begun == max(due_ns, ended_ns)
        late_ns_wanted = max(late_ns_wanted, begun - due_ns)
        ended_ns = begun + took_ms[index] * 1_000_000
    assert late_ns == late_ns_wanted


def test_no_calls_take_no_time() -> None:
    time = Time()
    assert paced(lambda _: None, rate_per_s=1, count=0, now_ns=time.read, sleep=time.sleep) == 0
    assert time.now_ns == 0
