"""`penstock bench`."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import click
import msgspec

from penstock.cli.options import (
    json_option,
    packed,
    parse_pairs,
    security,
    server_option,
    timeout_option,
    together,
)
from penstock.cli.progress import Progress
from penstock.cli.tables import counted, print_json, print_table
from penstock.config.addresses import parse_address
from penstock.model.errors import InvalidRequestError, PenstockError

if TYPE_CHECKING:
    from penstock.cli.load.target import Report, Target
    from penstock.cli.load.usage import Watch

RECORDS: Final = 400_000
STAMP_BYTES: Final = 16
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")


class _Common(msgspec.Struct, frozen=True):
    """The values of options that all workloads have."""

    server: str
    timeout_s: float
    server_pid: int | None
    topic: str | None
    keep: bool
    topic_configs: tuple[str, ...]
    client_settings: tuple[str, ...]
    as_json: bool


class _Producing(msgspec.Struct, frozen=True):
    """The values of options that all workloads with a producer have."""

    idempotent: bool
    acks: str
    compression: str

    def settings(self) -> dict[str, str]:
        """Return librdkafka's settings. Raises: click.UsageError: they exclude one another."""
        if self.idempotent and self.acks != "all":
            raise click.UsageError(
                f"--acks {self.acks} needs --no-idempotent: idempotence needs all"
            )
        return {
            "acks": self.acks,
            "compression.type": self.compression,
            "enable.idempotence": "true" if self.idempotent else "false",
        }


_common = packed(
    "common",
    _Common,
    server_option,
    timeout_option,
    click.option(
        "--server-pid",
        type=click.IntRange(min=1),
        help="Measure CPU and memory of this process and its children; needs psutil.",
    ),
    click.option("--topic", help="Use a topic of this name, and keep it at the end."),
    click.option("--keep", is_flag=True, help="Don't delete the topic."),
    click.option(
        "--topic-config",
        "topic_configs",
        multiple=True,
        metavar="NAME=VALUE",
        help="A config of the new topic, for example flush.messages=1. May be repeated.",
    ),
    click.option(
        "--client",
        "client_settings",
        multiple=True,
        metavar="NAME=VALUE",
        help="A setting of librdkafka, for example security.protocol=SASL_SSL. May be repeated.",
    ),
    json_option,
)
_producing = packed(
    "producing",
    _Producing,
    click.option(
        "--idempotent/--no-idempotent",
        default=True,
        show_default=True,
        help="Whether producers are idempotent (enable.idempotence); Java's default is on, "
        "librdkafka's off.",
    ),
    click.option(
        "--acks",
        type=click.Choice(["all", "1", "0"]),
        default="all",
        show_default=True,
        help="Which acknowledgements producers wait for.",
    ),
    click.option(
        "--compression",
        type=click.Choice(CODECS),
        default="none",
        show_default=True,
        help="How producers compress batches.",
    ),
)
_value_bytes = click.option(
    "--value-bytes",
    type=click.IntRange(min=STAMP_BYTES),
    default=1024,
    show_default=True,
    help="Size of each record's value. Values are random; records have no key.",
)
_partitions = click.option(
    "--partitions",
    type=click.IntRange(min=1),
    default=12,
    show_default=True,
    help="Partitions of the topic.",
)
_seconds = together(
    click.option(
        "--seconds",
        type=click.FloatRange(min=0.1),
        default=20.0,
        show_default=True,
        help="How long the workload is measured.",
    ),
    click.option(
        "--warmup",
        "warmup_s",
        metavar="SECONDS",
        type=click.FloatRange(min=0),
        default=3.0,
        show_default=True,
        help="Records are sent for this long before the measured time.",
    ),
)


@click.group("bench")
def command() -> None:
    """Measure a server of Kafka's protocol: Penstock, Kafka, or any other.

    Each workload creates a topic, checks its figures against the server's own offsets, and deletes
    the topic. Other programs on this machine disturb the client: look at "noise" first.
    """


@command.command("produce")
@click.option(
    "--records",
    type=click.IntRange(min=1),
    default=RECORDS,
    show_default=True,
    help="How many records are sent.",
)
@_value_bytes
@_partitions
@_producing
@_common
def produce(
    records: int,
    value_bytes: int,
    partitions: int,
    producing: _Producing,
    common: _Common,
) -> None:
    """Send records as fast as one producer can."""
    from penstock.cli.load import throughput

    run = _Run(common, producing.settings())
    with Progress("records", total=records) as progress:
        report = throughput.produce(
            run.target,
            run.topic,
            records=records,
            value_bytes=value_bytes,
            partitions=partitions,
            topic_configs=run.topic_configs,
            watch=run.watch(),
            progress=lambda count: progress.update(count, count),
        )
    run.end(report)


@command.command("consume")
@click.option(
    "--records",
    type=click.IntRange(min=1),
    default=RECORDS,
    show_default=True,
    help="Records that are sent first, and then read; with --topic nothing is sent.",
)
@_value_bytes
@_partitions
@_common
def consume(records: int, value_bytes: int, partitions: int, common: _Common) -> None:
    """Read a topic as fast as one consumer can."""
    from penstock.cli.load import throughput

    run = _Run(common, {})
    with Progress("records", total=records) as progress:

        def shown(count: int) -> None:
            progress.update(count, count)

        if run.is_new:
            filled = throughput.produce(
                run.target,
                run.topic,
                records=records,
                value_bytes=value_bytes,
                partitions=partitions,
                topic_configs=run.topic_configs,
                watch=run.watch(),
                progress=shown,
            )
            if not filled.ok:
                run.end(filled)
                return
        report = throughput.consume(run.target, run.topic, watch=run.watch(), progress=shown)
    run.end(report)


@command.command("latency")
@click.option(
    "--rate", type=click.IntRange(min=1), default=1_000, show_default=True, help="Records a second."
)
@_seconds
@_value_bytes
@_partitions
@_producing
@_common
def latency(
    rate: int,
    seconds: float,
    warmup_s: float,
    value_bytes: int,
    partitions: int,
    producing: _Producing,
    common: _Common,
) -> None:
    """Measure how long records take at a steady rate: to acknowledgement, and to a consumer."""
    from penstock.cli.load import latency as workload

    run = _Run(common, producing.settings())
    with Progress("records", total=int(rate * (seconds + warmup_s))) as progress:
        report = workload.latency(
            run.target,
            run.topic,
            rate_per_s=rate,
            seconds=seconds,
            warmup_s=warmup_s,
            value_bytes=value_bytes,
            partitions=partitions,
            topic_configs=run.topic_configs,
            watch=run.watch(),
            progress=lambda count: progress.update(count, count),
        )
    run.end(report)


@command.command("fan")
@click.option(
    "--producers",
    type=click.IntRange(min=1),
    default=50,
    show_default=True,
    help="How many producers send.",
)
@click.option(
    "--rate",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="Records a second of each producer.",
)
@_seconds
@_value_bytes
@_producing
@_common
def fan(
    producers: int,
    rate: int,
    seconds: float,
    warmup_s: float,
    value_bytes: int,
    producing: _Producing,
    common: _Common,
) -> None:
    """Send from many slow producers, each with a connection and a partition of its own."""
    from penstock.cli.load import latency as workload

    run = _Run(common, producing.settings())
    with Progress("records", total=int(producers * rate * (seconds + warmup_s))) as progress:
        report = workload.fan(
            run.target,
            run.topic,
            producers=producers,
            rate_per_s=rate,
            seconds=seconds,
            warmup_s=warmup_s,
            value_bytes=value_bytes,
            topic_configs=run.topic_configs,
            watch=run.watch(),
            progress=lambda count: progress.update(count, count),
        )
    run.end(report)


@command.command("connections")
@click.option(
    "--consumers",
    type=click.IntRange(min=1),
    default=500,
    show_default=True,
    help="How many consumers wait for records.",
)
@_common
def connections(consumers: int, common: _Common) -> None:
    """Measure many consumers: what they cost when idle, and how soon each has a new record."""
    from penstock.cli.load import connections as workload

    run = _Run(common, {})
    with Progress("consumers", total=consumers) as progress:
        report = workload.connections(
            run.target,
            run.topic,
            consumers=consumers,
            topic_configs=run.topic_configs,
            make_watch=run.watch,
            progress=lambda count: progress.update(count, count),
        )
    run.end(report)


class _Run:
    """One run of a workload, with the options that all workloads share."""

    def __init__(self, common: _Common, producer_settings: Mapping[str, str]) -> None:
        from penstock.cli.load.target import Target

        self._common = common
        secured = security()
        self.target: Target = Target(
            parse_address(common.server, setting="--server"),
            timeout_s=common.timeout_s,
            client_settings={
                **({} if secured is None else secured.librdkafka()),
                **parse_pairs(common.client_settings, option="--client"),
            },
            producer_settings=producer_settings,
        )
        self.topic_configs = parse_pairs(common.topic_configs, option="--topic-config")
        self.is_new = common.topic is None
        self.topic = common.topic or f"penstock-bench-{os.getpid()}-{time.time_ns() // 1_000_000}"
        # This refuses a pid that can't be measured before anything runs.
        self.watch()

    def watch(self) -> Watch:
        """Return a new watch of the server."""
        from penstock.cli.load.usage import Watch

        return Watch(self._common.server_pid)

    def end(self, report: Report) -> None:
        """Print the report and delete the topic. Raises: PenstockError, unless the report is ok."""
        if self._common.as_json:
            print_json(msgspec.to_builtins(report))
        else:
            print_table(("figure", "value"), _rows(msgspec.to_builtins(report)))
        if self.is_new and not self._common.keep:
            try:
                self.target.drop_topic(self.topic)
            except PenstockError as error:
                click.echo(f"penstock: {error}; the topic stays", err=True)
        if not report.ok:
            raise InvalidRequestError(
                "measure",
                report.workload,
                f"{report.failed_count:,} of {counted(report.record_count, 'record')} failed: "
                f"{report.first_failure or 'the server holds other records than were sent'}",
                "don't trust the figures above",
            )


def _rows(report: Mapping[str, object], prefix: str = "") -> list[tuple[str, object]]:
    """Flatten a report into (name, value), without what could not be measured."""
    rows: list[tuple[str, object]] = []
    for name, value in report.items():
        if isinstance(value, dict):
            rows += _rows(value, f"{prefix}{name}.")
        elif value is not None and value != "":
            rows.append((f"{prefix}{name}", value))
    return rows
