"""`penstock authz recover`."""

from pathlib import Path

import click

from penstock.cli.options import parse_time
from penstock.model.errors import InvalidRequestError
from penstock.system.clock import SystemClock
from penstock.system.randomness import SystemRandom


@click.command("recover")
@click.option(
    "--data",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    envvar="PENSTOCK_AUTHZ_DATA",
    show_envvar=True,
    required=True,
    help="The service's data directory.",
)
@click.option(
    "--environment", metavar="NAME", default="default", show_default=True, help="Which one."
)
@click.option(
    "--to-position", metavar="N", type=click.IntRange(min=1), help="The last entry that it has."
)
@click.option(
    "--to-time", metavar="TIME", help="The same by time: ISO 8601 (UTC without a zone), or ms."
)
@click.argument("output", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path))
def command(
    data: Path, environment: str, to_position: int | None, to_time: str | None, output: Path
) -> None:
    """Make FILE, a database of an environment as it was at an earlier position.

    The service may run meanwhile. To go back to it, stop the service and put FILE in the place of
    DIR/environments/NAME.sqlite, without that file's -wal and -shm, and remove DIR/snapshots/NAME.
    """
    if to_position is not None and to_time is not None:
        raise InvalidRequestError(
            "recover", "--to-time", "--to-position is given, too", "give one of both"
        )
    from penstock.authz.service.keeping import recover
    from penstock.replica.tokens import LOG_BYTES

    position = recover(
        data / "environments" / f"{environment}.sqlite",
        data / "snapshots" / environment,
        output,
        name=environment,
        log=SystemRandom().token_bytes(LOG_BYTES),
        stamp_ms=SystemClock().now_ms(),
        position=to_position,
        time_ms=None if to_time is None else parse_time(to_time),
    )
    click.echo(f"recovered environment {environment} at position {position} in {output}")
