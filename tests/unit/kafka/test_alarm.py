"""An alarm rings at each deadline that isn't taken back, whatever came before it."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from penstock.kafka.alarm import KEPT_S, Alarm


class ManualLoop:
    """As much of a loop as an alarm asks for, by a clock that tests move."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.timers: list[tuple[float, asyncio.TimerHandle]] = []
        self._handles = asyncio.new_event_loop()

    def close(self) -> None:
        self._handles.close()

    def time(self) -> float:
        return self.now_s

    def call_at(self, when: float, callback: object) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, (), self._handles)  # type: ignore[arg-type]
        self.timers.append((when, handle))
        return handle

    @property
    def open_timers(self) -> list[float]:
        return [when for when, handle in self.timers if not handle.cancelled()]

    def run_until(self, now_s: float) -> None:
        while True:
            due = sorted(
                (timer for timer in self.timers if timer[0] <= now_s), key=lambda timer: timer[0]
            )
            if not due:
                break
            self.timers.remove(due[0])
            self.now_s = max(self.now_s, due[0][0])
            if not due[0][1].cancelled():
                due[0][1]._run()
        self.now_s = now_s


@given(
    st.lists(st.tuples(st.sampled_from(("set", "clear", "wait", "hurry")), st.integers(1, 8000)))
)
def test_it_rings_for_what_is_set_and_for_nothing_else(steps: list[tuple[str, int]]) -> None:
    loop = ManualLoop()
    try:
        alarm = Alarm(loop)  # type: ignore[arg-type]
        rung: list[float] = []
        due: float | None = None
        expected: list[float] = []
        for step, ms in steps:
            if step == "set":
                due = loop.now_s + ms / 1000
                alarm.set(due, lambda: rung.append(loop.now_s))
            elif step == "hurry":
                alarm.hurry()
                if due is not None:
                    due = loop.now_s
            elif step == "clear":
                alarm.clear()
                due = None
                assert all(when - loop.now_s <= KEPT_S for when in loop.open_timers)
            else:
                until = loop.now_s + ms / 1000
                if due is not None and due <= until:
                    expected.append(due)
                    due = None
                loop.run_until(until)
            assert rung == expected
            assert len(loop.open_timers) <= 1
    finally:
        loop.close()


def test_deadlines_that_are_taken_back_share_a_timer() -> None:
    loop = ManualLoop()
    try:
        alarm = Alarm(loop)  # type: ignore[arg-type]
        for ms in range(400):
            loop.run_until(ms / 1000)
            alarm.set(loop.now_s + 0.5, lambda: None)
            alarm.clear()
        assert len(loop.timers) == 1
    finally:
        loop.close()
