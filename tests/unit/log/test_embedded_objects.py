"""Durability `object` on a server of its own: the flusher over the commit lane."""

from pathlib import Path

import pytest

from penstock.log.retention.keeper import partition_keys
from penstock.model.errors import RetryableError
from penstock.state.answers import BatchStatus
from penstock.state.commands import AlterTopicConfigs
from penstock.state.schema import FEATURE_LEVEL_MAX
from support.log_rig import Rig, run_rig

STORED = BatchStatus.STORED


def test_a_topic_is_stored_in_objects_and_read_like_any_other(tmp_path: Path) -> None:
    async def written(rig: Rig) -> None:
        (in_object,) = await rig.topic("o", penstock_durability="object")
        (in_wal,) = await rig.topic("w")
        for number in range(3):
            for key in (in_object, in_wal):
                append = await rig.append(key, b"%d" % number, producer=(7, 0, number))
                assert (append.status, append.base_offset) == (STORED, number)
        assert rig.view.feature_level == FEATURE_LEVEL_MAX
        assert len([run for run in rig.queries().wal_runs() if run.partition_key == in_object]) == 0
        loads = rig.log.blocks.load_count
        assert await rig.read_all(in_object) == [(n, b"%d" % n) for n in range(3)]
        assert rig.log.blocks.load_count == loads, "from memory"
        rig.forget_memory()
        assert await rig.read_all(in_object) == [(n, b"%d" % n) for n in range(3)]
        duplicate = await rig.append(in_object, b"2", producer=(7, 0, 2))
        assert (duplicate.status, duplicate.base_offset) == (BatchStatus.DUPLICATE, 2)

    async def read_again(rig: Rig) -> None:
        for name in ("o", "w"):
            topic = rig.view.topic(name)
            assert topic is not None
            (key,) = partition_keys(topic)
            assert await rig.read_all(key) == [(n, b"%d" % n) for n in range(3)]

    run_rig(tmp_path, written, flush_interval_ms=5)
    run_rig(tmp_path, read_again)


@pytest.mark.slow
@pytest.mark.options(flush_interval_ms=5)
async def test_without_the_store_objects_are_refused_and_their_producers_go_on_without_a_gap(
    rig: Rig,
) -> None:
    (key,) = await rig.topic("o", penstock_durability="object")
    put = rig.store.put

    async def refuse(name: str, parts: object, *, if_absent: bool = False) -> None:
        raise RetryableError("put", name, "the store is away")

    patience_s, rig.log.objects._store_wait_s = rig.log.objects._store_wait_s, 0.2
    rig.store.put = refuse  # type: ignore[method-assign]
    for sequence in (0, 1):
        with pytest.raises(RetryableError):
            await rig.append(key, b"x", producer=(7, 0, sequence))
    rig.store.put = put  # type: ignore[method-assign]
    rig.log.objects._store_wait_s = patience_s  # a busy disk may take longer
    with pytest.raises(RetryableError, match="earlier batch"):
        await rig.append(key, b"1", producer=(7, 0, 1))
    for sequence in (0, 1):
        append = await rig.append(key, b"%d" % sequence, producer=(7, 0, sequence))
        assert append.base_offset == sequence


@pytest.mark.options(flush_interval_ms=5)
async def test_a_topic_goes_over_to_objects_and_back(rig: Rig) -> None:
    (key,) = await rig.topic("t")
    topic = rig.view.topic("t")
    assert topic is not None
    expected = 0
    for durability in ("wal", "object", "wal", "object"):
        await rig.log.commit(
            [AlterTopicConfigs(topic_id=topic.topic_id, set={"penstock.durability": durability})]
        )
        for _ in range(3):
            append = await rig.append(key, b"%d" % expected, producer=(7, 0, expected))
            assert append.base_offset == expected
            expected += 1
    rig.forget_memory()
    assert await rig.read_all(key) == [(n, b"%d" % n) for n in range(expected)]
    await rig.drain()
    rig.forget_memory()
    assert await rig.read_all(key) == [(n, b"%d" % n) for n in range(expected)]
