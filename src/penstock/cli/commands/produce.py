"""`penstock produce`."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import click

from penstock.cli.client.producing import NewRecord, Producer, text_headers
from penstock.cli.options import connect, parse_pairs, server_option, timeout_option
from penstock.cli.progress import Progress
from penstock.cli.recordtext import read_json_line, read_text_line
from penstock.records.decode import CODECS

FLUSH_INTERVAL_S = 0.1


@click.command("produce")
@click.argument("topic")
@click.argument(
    "files", nargs=-1, type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path)
)
@click.option(
    "--format",
    "line_format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="text: a line is a value. json: a line is an object with key, value, headers, "
    "partition and timestamp.",
)
@click.option("--key-separator", metavar="TEXT", help="A line is a key, this, and a value.")
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="May be repeated.")
@click.option(
    "--partition", type=click.IntRange(min=0), help="For all records; else by key, as Kafka does."
)
@click.option(
    "--compression",
    type=click.Choice(CODECS),
    default="none",
    show_default=True,
    help="Of batches.",
)
@click.option(
    "--batch-bytes",
    type=click.IntRange(min=1),
    default=256 * 1024,
    show_default=True,
    help="Records sent together, per partition.",
)
@server_option
@timeout_option
def command(
    topic: str,
    files: tuple[Path, ...],
    line_format: str,
    key_separator: str | None,
    headers: tuple[str, ...],
    partition: int | None,
    compression: str,
    batch_bytes: int,
    server: str,
    timeout_s: float,
) -> None:
    """Send each line of FILES, or of standard input, to TOPIC.

    The topic is created if the server's settings allow that. Every record is stored once and in
    order: the producer is idempotent and waits for all acknowledgements.
    """
    if key_separator is not None and line_format == "json":
        raise click.UsageError("--key-separator is for --format text")
    separator = None if key_separator is None else key_separator.encode()
    common = text_headers(parse_pairs(headers, option="--header"))
    with connect(server, timeout_s) as client:
        producer = Producer(
            client,
            client.topic(topic, create=True),
            codec=compression,
            batch_bytes=batch_bytes,
            deadline_s=timeout_s,
        )
        read_bytes = count = 0
        flushed_s = time.monotonic()
        with Progress("records", total=_total_bytes(files)) as progress:
            for place, line, line_bytes in _lines(files):
                now_ms = time.time_ns() // 1_000_000
                if line_format == "json":
                    record = read_json_line(line, headers=common, now_ms=now_ms, place=place)
                else:
                    record = read_text_line(
                        line, key_separator=separator, headers=common, now_ms=now_ms, place=place
                    )
                producer.add(_placed(record, partition))
                read_bytes += line_bytes
                count += 1
                progress.update(read_bytes, count)
                if not files and time.monotonic() - flushed_s > FLUSH_INTERVAL_S:
                    # What is typed, or trickles through a pipe, should be there soon.
                    producer.flush()
                    flushed_s = time.monotonic()
            producer.flush()
    click.echo(f"{producer.sent_count} records", err=True)


def _placed(record: NewRecord, partition: int | None) -> NewRecord:
    if partition is None or record.partition is not None:
        return record
    return NewRecord(
        key=record.key,
        value=record.value,
        headers=record.headers,
        timestamp=record.timestamp,
        partition=partition,
    )


def _total_bytes(files: tuple[Path, ...]) -> int | None:
    if not files or any(str(file) == "-" for file in files):
        return None
    return sum(file.stat().st_size for file in files)


def _lines(files: tuple[Path, ...]) -> Iterator[tuple[str, bytes, int]]:
    """(place for errors, line without its end, bytes read) of all files."""
    for file in files or (Path("-"),):
        if str(file) == "-":
            yield from _numbered("standard input", sys.stdin.buffer)
        else:
            with file.open("rb") as stream:
                yield from _numbered(str(file), stream)


def _numbered(name: str, stream: Iterator[bytes]) -> Iterator[tuple[str, bytes, int]]:
    for number, line in enumerate(stream, start=1):
        yield f"{name} line {number}", line.rstrip(b"\r\n"), len(line)
