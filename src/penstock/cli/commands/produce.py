"""`penstock produce`."""

import io
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, cast

import click

from penstock.cli.client.producing import NewRecord, Producer, text_headers
from penstock.cli.lines import STDIN, Line, lines_of_file, lines_that_come
from penstock.cli.options import connect, parse_pairs, server_option, timeout_option
from penstock.cli.progress import Progress
from penstock.cli.recordtext import read_json_line, read_text_line
from penstock.model.errors import InvalidRequestError
from penstock.records.decode import CODECS

LINGER_S: Final = 0.1
"""What is typed, or trickles through a pipe, should be there soon."""


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
    "partition and timestamp; unknown fields are refused, and a tombstone says that value is null.",
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
    order: the producer is idempotent and waits for all acknowledgements. What comes through a pipe
    is sent within a tenth of a second; after Ctrl-C, what was read is still sent.
    """
    if key_separator is not None and line_format == "json":
        raise click.UsageError("--key-separator is for --format text")
    separator = None if key_separator is None else key_separator.encode()
    common = text_headers(parse_pairs(headers, option="--header"))

    def read(line: Line) -> NewRecord:
        now_ms = time.time_ns() // 1_000_000
        if line_format == "json":
            record = read_json_line(line.text, headers=common, now_ms=now_ms, place=line.place)
        else:
            record = read_text_line(
                line.text, key_separator=separator, headers=common, now_ms=now_ms, place=line.place
            )
        return _placed(record, partition)

    with connect(server, timeout_s) as client:
        producer = Producer(
            client,
            client.topic(topic, create=True),
            codec=compression,
            batch_bytes=batch_bytes,
            deadline_s=timeout_s,
        )
        try:
            with Progress("records", total=_total_bytes(files)) as progress:
                _send(producer, _lines(files), read, progress)
        except KeyboardInterrupt:
            click.echo(_sent(producer), err=True)
            if producer.unsent_count:
                click.echo(f"{producer.unsent_count} more were read, not acknowledged", err=True)
            raise
    click.echo(_sent(producer), err=True)


def _send(
    producer: Producer,
    lines: Iterable[Line | None],
    read: Callable[[Line], NewRecord],
    progress: Progress,
) -> None:
    read_bytes = count = 0
    try:
        for line in lines:
            if line is None:
                producer.flush()
                continue
            producer.add(read(line))
            read_bytes += line.size_bytes
            count += 1
            progress.update(read_bytes, count)
    except (KeyboardInterrupt, InvalidRequestError):
        # Where it goes on is told: at the line that is no record, or by the count.
        producer.flush()
        raise
    producer.flush()


def _sent(producer: Producer) -> str:
    return f"{producer.sent_count} records"


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
    if not files or any(str(file) == STDIN for file in files):
        return None
    return sum(file.stat().st_size for file in files)


def _lines(files: tuple[Path, ...]) -> Iterator[Line | None]:
    for file in files or (Path(STDIN),):
        if str(file) == STDIN:
            stream = cast("io.BufferedReader", sys.stdin.buffer)
            yield from lines_that_come(stream, linger_s=LINGER_S)
        else:
            yield from lines_of_file(file)
