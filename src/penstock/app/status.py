"""A server describes itself in the JSON of /v1/status and in the gauges of /metrics."""

import os

from penstock.app.parts import Parts
from penstock.config.addresses import Address
from penstock.kafka.net.lanes import Lane, Lanes
from penstock.version import VERSION


def status(
    parts: Parts, *, kafka: Address, http: Address | None, ready_s: float
) -> dict[str, object]:
    """Return the JSON object of /v1/status; sizes are in bytes, times in seconds.

    Args:
        kafka: the listening address.
        http: the listening address; None: this server has no HTTP port.
        ready_s: when the server was ready, by the monotonic clock.
    """
    log, broker = parts.log, parts.broker
    topics = parts.view.topics()
    now_s = parts.clock.monotonic_s()
    return {
        "version": VERSION,
        "cluster_id": broker.cluster_id,
        "node_id": broker.node_id,
        "agent_epoch": parts.epoch,
        "pid": os.getpid(),
        "uptime_s": round(now_s - ready_s, 3),
        "kafka": str(kafka),
        "advertised": str(Address(broker.advertised_host, broker.advertised_port)),
        "listeners": [
            {
                "name": each.name,
                "protocol": each.protocol,
                "advertised": str(Address(each.advertised_host, each.advertised_port)),
            }
            for each in broker.listeners
        ],
        "http": str(http) if http else None,
        "data": str(parts.layout.root),
        "topics": len(topics),
        "partitions": sum(topic.partitions for topic in topics),
        "connections": parts.kafka.connection_count,
        "inflight_bytes": parts.kafka.data.used_bytes,
        "inflight": {
            "data": _lanes(parts.kafka.data, now_s),
            "groups": _lanes(parts.kafka.groups, now_s),
        },
        "journal_position": parts.position,
        "tail_cache_bytes": log.tail.bytes,
        "block_cache": {
            "bytes": log.blocks.bytes,
            "hits": log.blocks.hit_count,
            "loads": log.blocks.load_count,
        },
        "clock": _clock(parts),
        "damage": {**log.damages.status(), "wal_frames": log.damaged_frames.status()},
        "lost_ranges": log.lost_ranges.status(),
        "rebuilt_ranges": log.rebuilt_ranges.status(),
        "scrub": log.scrubber.status(),
        **parts.status(),
    }


def gauges(parts: Parts, *, ready_s: float) -> dict[str, float]:
    """Return the values of the gauges that are read at each scrape."""
    log, data, groups = parts.log, parts.kafka.data, parts.kafka.groups
    topics = parts.view.topics()
    now_s = parts.clock.monotonic_s()
    return {
        "penstock_uptime_seconds": now_s - ready_s,
        "penstock_connections": parts.kafka.connection_count,
        "penstock_inflight_bytes": data.used_bytes,
        "penstock_inflight_bytes_max": data.limit_bytes,
        "penstock_group_inflight_bytes": groups.used_bytes,
        "penstock_group_inflight_bytes_max": groups.limit_bytes,
        "penstock_inflight_waiting": sum(
            lanes.waiting_count(lane) for lanes in (data, groups) for lane in Lane
        ),
        "penstock_inflight_longest_wait_seconds": max(
            data.longest_wait_s(now_s), groups.longest_wait_s(now_s)
        ),
        "penstock_tail_cache_bytes": log.tail.bytes,
        "penstock_block_cache_bytes": log.blocks.bytes,
        "penstock_block_cache_hits_total": log.blocks.hit_count,
        "penstock_block_cache_loads_total": log.blocks.load_count,
        "penstock_lost_ranges": log.lost_ranges.count,
        "penstock_rebuilt_ranges": log.rebuilt_ranges.count,
        "penstock_scrubbed_bytes_total": log.scrubber.read_bytes,
        "penstock_scrub_passes_total": log.scrubber.pass_count,
        "penstock_damaged_ranges": len(log.damages.known()),
        "penstock_damaged_wal_frames": log.damaged_frames.count,
        "penstock_clock_in_doubt": float(parts.ages.now_ms() is None),
        "penstock_clock_off_seconds": parts.clock.doubted_ms / 1000,
        "penstock_journal_time_ahead_seconds": log.keeper.time_setting.ahead_ms() / 1000,
        "penstock_transactions_timed_out_total": log.transactions.timed_out_count,
        "penstock_transactional_ids_forgotten_total": log.transactions.forgotten_count,
        "penstock_topics": len(topics),
        "penstock_partitions": sum(topic.partitions for topic in topics),
        "penstock_journal_position": parts.position,
        **parts.gauges(),
    }


def _lanes(lanes: Lanes, now_s: float) -> dict[str, object]:
    """Return the bytes that count towards one limit, and how many tickets wait for room."""
    return {
        "bytes": lanes.used_bytes,
        "bytes_max": lanes.limit_bytes,
        "waiting": {lane.value: lanes.waiting_count(lane) for lane in Lane},
        "longest_wait_s": round(lanes.longest_wait_s(now_s), 3),
    }


def _clock(parts: Parts) -> dict[str, object]:
    """Return whether ages are measured now, and how far journal time is ahead of the clock."""
    doubt = parts.clock.describe()
    if not doubt and parts.ages.now_ms() is None:
        doubt = "this host's clock differed from the journal's a short time ago"
    return {
        "in_doubt": doubt,
        "off_ms": parts.clock.doubted_ms,
        "believed_in_s": round(parts.clock.believed_in_s, 1),
        "journal_ahead_ms": parts.log.keeper.time_setting.ahead_ms(),
    }
