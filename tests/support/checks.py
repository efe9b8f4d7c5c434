"""`RunChecks` of a log of which nothing is known, for tests of parts."""

from concurrent.futures import Executor

from obstore.store import MemoryStore

from penstock.log.fetch.run_checks import RunChecks
from penstock.log.findings import Damages
from penstock.objects.bucket import BucketStore
from penstock.ports.clock import Clock
from penstock.ports.objects import ObjectStore
from support.simulated.clock import ManualClock


def run_checks(
    pool: Executor,
    *,
    clock: Clock | None = None,
    clean_end: int = 0,
    store: ObjectStore | None = None,
) -> RunChecks:
    clock = clock or ManualClock(now_ms=1_790_000_000_000)
    return RunChecks(
        damages=Damages(clock=clock, partition_name=lambda key: f"t-{key}", log_start=lambda _: 0),
        clock=clock,
        pool=pool,
        clean_end=lambda _: clean_end,
        epochs=lambda _: (),
        seed_of=lambda _: None,
        again_s=3600.0,
        store=store or BucketStore(MemoryStore()),
        topic_id_of=lambda _: None,
    )
