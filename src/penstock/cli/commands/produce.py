"""`penstock produce`."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import cast

import click
import msgspec

from penstock.cli.client.producing import BATCH_BYTES, NewRecord, Producer
from penstock.cli.lines import STDIN, Lines, lines_of_file, lines_that_come
from penstock.cli.options import connect, parse_pairs, server_option, timeout_option
from penstock.cli.progress import Progress
from penstock.cli.recordtext import Place, read_json_line, read_text_line
from penstock.cli.tables import counted
from penstock.model.errors import InvalidRequestError
from penstock.records.decode import CODECS


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
    "partition and timestamp; unknown fields are refused; a tombstone has a null value.",
)
@click.option("--key-separator", metavar="TEXT", help="A line is a key, this text, and a value.")
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="May be repeated.")
@click.option(
    "--partition",
    type=click.IntRange(min=0),
    help="Partition of all records; without it, the key chooses, as in Kafka.",
)
@click.option(
    "--compression",
    type=click.Choice(CODECS),
    default="none",
    show_default=True,
    help="How batches are compressed.",
)
@click.option(
    "--batch-bytes",
    type=click.IntRange(min=1),
    default=BATCH_BYTES,
    show_default=True,
    help="Largest batch of records of one partition.",
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
    order: the producer is idempotent and waits for all acknowledgements. A line from a pipe is sent
    within a tenth of a second; after Ctrl-C, lines that were read are still sent.
    """
    if key_separator is not None and line_format == "json":
        raise click.UsageError("--key-separator is for --format text")
    separator = (key_separator or "").encode()
    pairs = parse_pairs(headers, option="--header")
    common: list[tuple[str, bytes | None]] = [(name, pairs[name].encode()) for name in pairs]

    def read_text(text: bytes, place: Place) -> NewRecord:
        return read_text_line(text, key_separator=separator, headers=common, place=place)

    def read_json(text: bytes, place: Place) -> NewRecord:
        return read_json_line(text, headers=common, place=place)

    with connect(server, timeout_s) as client:
        producer = Producer(
            client,
            topic,
            codec=compression,
            batch_bytes=batch_bytes,
            deadline_s=timeout_s,
        )

        def send(lines: Lines) -> None:
            if line_format == "text" and not separator:
                producer.add_values(lines.texts, headers=common, partition=partition)
                return
            read = read_json if line_format == "json" else read_text
            _add(producer, lines, read, partition)

        try:
            with Progress("records", total=_total_bytes(files)) as progress:
                _send(producer, _lines(files), send, progress)
        except KeyboardInterrupt:
            unsent_count = producer.unsent_count
            click.echo(_sent(producer), err=True)
            if unsent_count:
                unsent = counted(unsent_count, "more record")
                click.echo(f"read {unsent}, without acknowledgement", err=True)
            raise
        finally:
            producer.close()
    click.echo(_sent(producer), err=True)


def _send(
    producer: Producer,
    blocks: Iterable[Lines],
    send: Callable[[Lines], None],
    progress: Progress,
) -> None:
    read_bytes = count = 0
    try:
        for lines in blocks:
            send(lines)
            producer.serve()
            read_bytes += lines.size_bytes
            count += len(lines.texts)
            progress.update(read_bytes, count)
    except (KeyboardInterrupt, InvalidRequestError):
        # The user learns where to go on: from the place of the bad line, or from the count.
        producer.flush()
        raise
    producer.flush()


def _add(
    producer: Producer,
    lines: Lines,
    read: Callable[[bytes, Place], NewRecord],
    partition: int | None,
) -> None:
    place = Place(lines.source, lines.first)
    for text in lines.texts:
        record = read(text, place)
        if partition is not None and record.partition is None:
            record = msgspec.structs.replace(record, partition=partition)
        producer.add(record)
        place.number += 1


def _sent(producer: Producer) -> str:
    return counted(producer.sent_count, "record")


def _total_bytes(files: tuple[Path, ...]) -> int | None:
    if not files or any(str(file) == STDIN for file in files):
        return None
    return sum(file.stat().st_size for file in files)


def _lines(files: tuple[Path, ...]) -> Iterator[Lines]:
    for file in files or (Path(STDIN),):
        if str(file) == STDIN:
            yield from lines_that_come(cast("io.BufferedReader", sys.stdin.buffer))
        else:
            yield from lines_of_file(file)
