"""A clock that is wrong for a while deletes nothing, and what it did to journal time heals."""

from pathlib import Path

from penstock.ports.clock import Clock
from support.cluster_rig import Cluster, passing, run_cluster

DAY_MS = 86_400_000


class AheadClock:
    """Another clock, this far ahead."""

    def __init__(self, real: Clock, ahead_ms: int) -> None:
        self._real = real
        self._ahead_ms = ahead_ms

    def now_ms(self) -> int:
        return self._real.now_ms() + self._ahead_ms

    def monotonic_s(self) -> float:
        return self._real.monotonic_s()


def test_a_jump_of_the_databases_clock_deletes_no_record(tmp_path: Path) -> None:
    """For 0.6 s, in which at least one row is stamped: too short for any guard to see."""

    async def test(cluster: Cluster) -> None:
        agent = await cluster.agent(1)
        (key,) = await agent.topic("t")
        for number in range(5):
            await agent.append(key, b"v%d" % number)
        real = cluster.journal.clock
        cluster.journal.clock = AheadClock(real, 30 * DAY_MS)
        await passing(0.6)
        await agent.catch_up()
        assert agent.order.time_ms <= real.now_ms() + 5_000
        cluster.journal.clock = real
        await passing(5)
        assert await agent.log.keeper.trim_expired() == 0
        await agent.catch_up()
        assert (agent.log.log_start(key), agent.log.high_watermark(key)) == (0, 5)

    run_cluster(tmp_path, test)
