"""`penstock consume`."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import click

from penstock.cli.client.admin import EARLIEST
from penstock.cli.client.patience import Patience
from penstock.cli.options import connect, parse_time, server_option, timeout_option
from penstock.cli.progress import Progress
from penstock.cli.reading import Batches, Reader, Start, read_alone, read_as_member
from penstock.cli.recordtext import json_lines, text_lines

if TYPE_CHECKING:
    from confluent_kafka import Message


@click.command("consume")
@click.argument("topics", nargs=-1, required=True)
@click.option("--from-beginning", is_flag=True, help="Begin at the first record, not at the end.")
@click.option(
    "--offset", type=int, help="Begin at this offset; a negative offset counts from the end."
)
@click.option(
    "--from-time", metavar="TIME", help="Begin at this time: ISO 8601 (UTC) or ms since the epoch."
)
@click.option(
    "--partition",
    "partitions",
    multiple=True,
    type=int,
    help="Read this partition alone; may be repeated.",
)
@click.option("--group", metavar="NAME", help="Read as a member of this group, and commit.")
@click.option("--max-messages", type=click.IntRange(min=1), help="End after this many records.")
@click.option(
    "--until-end", is_flag=True, help="End at the ends that partitions have at the start."
)
@click.option(
    "--idle-timeout",
    "idle_s",
    metavar="SECONDS",
    type=click.FloatRange(min=0.1),
    help="End when no record has arrived for this long.",
)
@click.option(
    "--format",
    "line_format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="text: values. json: one object per record.",
)
@click.option(
    "--key-separator", metavar="TEXT", help="Print the key and this text before the value."
)
@server_option
@timeout_option
def command(
    topics: tuple[str, ...],
    from_beginning: bool,
    offset: int | None,
    from_time: str | None,
    partitions: tuple[int, ...],
    group: str | None,
    max_messages: int | None,
    until_end: bool,
    idle_s: float | None,
    line_format: str,
    key_separator: str | None,
    server: str,
    timeout_s: float,
) -> None:
    """Print the records of TOPICS, a line each, until Ctrl-C.

    Without a group, nothing is committed. With a group, reading goes on at the group's committed
    offsets, and the options for the beginning count only for partitions without a committed offset.
    If the server goes away, the command tries again for a minute.
    """
    if sum((from_beginning, offset is not None, from_time is not None)) > 1:
        raise click.UsageError("give one of --from-beginning, --offset and --from-time")
    if group is not None and (partitions or until_end):
        raise click.UsageError("--partition and --until-end are for reading without a group")
    start = Start(offset=offset)
    if from_beginning:
        start = Start(timestamp=EARLIEST)
    elif from_time is not None:
        start = Start(timestamp=parse_time(from_time))
    separator = None if key_separator is None else key_separator.encode()
    show: Callable[[Sequence[Message]], bytes] = json_lines
    if line_format == "text":
        show = functools.partial(text_lines, key_separator=separator)
    with connect(server, timeout_s) as client:
        reader = Reader(client, group, start)
        patience = Patience(lambda text: click.echo(text, err=True))
        if group is None:
            batches = read_alone(reader, topics, partitions, until_end=until_end, patience=patience)
        else:
            batches = read_as_member(reader, topics, patience=patience)
        try:
            _print(batches, reader, show, max_messages=max_messages, idle_s=idle_s)
        except KeyboardInterrupt:
            # Ctrl-C is the usual end of this command, so the exit status is 0.
            pass
        finally:
            batches.close()


def _print(
    batches: Batches,
    reader: Reader,
    show: Callable[[Sequence[Message]], bytes],
    *,
    max_messages: int | None,
    idle_s: float | None,
) -> None:
    output, count = sys.stdout.buffer, 0
    arrived_s = time.monotonic()
    # A progress line would mix with records that are printed to the same terminal.
    enabled = sys.stderr.isatty() and not sys.stdout.isatty()
    with Progress("records", total=max_messages, enabled=enabled) as progress:
        for messages in batches:
            wanted = messages if max_messages is None else messages[: max_messages - count]
            output.write(show(wanted))
            output.flush()
            reader.printed(wanted)
            count += len(wanted)
            progress.update(count, count)
            if count == max_messages:
                return
            if messages:
                arrived_s = time.monotonic()
            elif idle_s is not None and time.monotonic() - arrived_s >= idle_s:
                return
