"""`penstock pipeline run`."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from penstock.cli.options import Command
from penstock.cli.pipeline_options import (
    ApiOptions,
    CatalogOptions,
    EngineOptions,
    api_options,
    catalog_options,
    engine_options,
    pipeline_option,
    say_start,
)
from penstock.config.addresses import parse_address
from penstock.config.sources import PIPELINE_SECTION, read_pipeline_section
from penstock.model.errors import InvalidRequestError
from penstock.observability.logs import configure_logs

if TYPE_CHECKING:
    from penstock.pipeline.schedule import Outcome

NOT_WELL_EXIT_STATUS: Final = 1


def _read_config(context: click.Context, _option: click.Parameter, file: Path | None) -> None:
    """Make a TOML file's section the options' defaults. The environment and the command line have
    precedence."""
    if file is None:
        return
    known = {option.name for option in context.command.params}
    values: dict[str, object] = {}
    for name, value in read_pipeline_section(file).items():
        option = name.replace("-", "_")
        option = _PARAMETERS.get(option, option)
        if option not in known:
            raise InvalidRequestError(
                "read setting", f"{PIPELINE_SECTION}.{name}", f"unknown setting in {file}"
            )
        values[option] = (
            [f"{key}={one}" for key, one in value.items()] if isinstance(value, dict) else value
        )
    context.default_map = values


_PARAMETERS: Final[Mapping[str, str]] = {
    "url": "urls",
    "access": "objects",
    "catalog_property": "catalog_properties",
    "json": "as_json",
}


def _interval(name: str, seconds: float, text: str) -> Callable[[Command], Command]:
    return pipeline_option(
        f"--{name}-interval",
        f"{name}_interval",
        metavar="SECONDS",
        type=click.FloatRange(min=0),
        default=seconds,
        show_default=True,
        help=text,
    )


@click.command("run")
@pipeline_option(
    "--config",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    is_eager=True,
    expose_value=False,
    callback=_read_config,
    help="TOML file whose section [pipeline] has these options by name; a server's file may have "
    "this section.",
)
@_interval("compaction", 60.0, "Seconds between two searches for something to compact; 0: never.")
@_interval("table", 30.0, "Seconds between two commits to each topic's table; 0: never.")
@_interval("maintenance", 3600.0, "Seconds between two maintenances of each table; 0: never.")
@catalog_options
@pipeline_option(
    "--parallel",
    metavar="N",
    type=click.IntRange(min=1),
    default=4,
    show_default=True,
    help="Number of tables that are brought up to date at the same time.",
)
@pipeline_option(
    "--bulk-parallel",
    metavar="N",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    help="Number of bulk jobs (compaction, maintenance) that run at the same time.",
)
@pipeline_option(
    "--lag-alarm",
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    default=600.0,
    show_default=True,
    help="Lag of a table above which /health answers 503.",
)
@pipeline_option(
    "--dead-letter-alarm",
    metavar="SHARE",
    type=click.FloatRange(min=0, max=1),
    default=0.1,
    show_default=True,
    help="Share of a table's records of the last hour that became dead letters above which "
    "/health answers 503; 1: never.",
)
@pipeline_option(
    "--drain",
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    help="Longest wait for running jobs at the end.",
)
@pipeline_option(
    "--http",
    metavar="HOST:PORT",
    default="",
    help="Serve /metrics, /v1/status and /health at this address.",
)
@pipeline_option("--once", is_flag=True, help="Run each job once, and end.")
@pipeline_option("--json", "as_json", is_flag=True, help="Print one JSON object per run of a job.")
@api_options
@engine_options
@click.pass_context
def command(
    context: click.Context,
    compaction_interval: float,
    table_interval: float,
    maintenance_interval: float,
    catalog: CatalogOptions,
    registry: str,
    parallel: int,
    bulk_parallel: int,
    lag_alarm: float,
    dead_letter_alarm: float,
    drain: float,
    http: str,
    once: bool,
    as_json: bool,
    api: ApiOptions,
    engine: EngineOptions,
) -> None:
    """Run all jobs of a cluster on a schedule: compaction, and tables of topics that have one.

    This process schedules jobs. Its child process runs them on the engine, and is started again
    when Spark's Java, its master or its server is gone. A job that fails is tried again after a
    growing pause; other jobs go on. After SIGTERM or Ctrl-C, running jobs may finish within
    --drain; a second signal ends them at once. A job that is killed leaves only objects that the
    agents delete.
    """
    configure_logs("warning")
    reached, choice = api.client_options(), engine.choose()
    from penstock.pipeline.jobs import Intervals, JobSettings
    from penstock.pipeline.running import RunSettings, run_pipeline

    jobs = JobSettings(catalog=catalog.settings(), registry=registry)
    jobs.catalog.check()
    address = parse_address(http, setting="--http") if http else None
    settings = RunSettings(
        api=reached,
        engine=choice,
        jobs=jobs,
        intervals=Intervals(
            compaction_s=compaction_interval,
            table_s=table_interval,
            maintenance_s=maintenance_interval,
        ),
        parallel=parallel,
        bulk_parallel=bulk_parallel,
        http=None if address is None else (address.host, address.port),
        lag_alarm_s=lag_alarm,
        bad_alarm_share=dead_letter_alarm,
        drain_s=drain,
        once=once,
    )
    say_start(choice, urls=reached.urls, warehouse=catalog.warehouse)
    is_well = run_pipeline(
        settings,
        report=lambda outcome: _print(outcome, as_json=as_json),
        say=lambda line: click.echo(line, err=True),
    )
    if not is_well:
        context.exit(NOT_WELL_EXIT_STATUS)


def _print(outcome: "Outcome", *, as_json: bool) -> None:
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    if as_json:
        line = {
            "time": now,
            "job": outcome.name,
            "seconds": round(outcome.seconds, 3),
            "error": outcome.error,
            "failures_in_a_row": outcome.failures_in_a_row,
            "summary": outcome.summary,
        }
        click.echo(json.dumps(line, ensure_ascii=False, default=str))
    elif outcome.error:
        click.echo(f"{now} {outcome.name} failed: {outcome.error}", err=True)
    elif changed := shown_counts(outcome.summary):
        click.echo(f"{now} {outcome.name}: {changed}, {outcome.seconds:.1f} s")
    sys.stdout.flush()


_SHOWN: Final = (
    "items", "runs_before", "runs_after", "rows", "bad_records", "files", "commits", "behind",
    "files_joined", "files_written", "joins_given_up", "snapshots_expired", "orphans_deleted",
)  # fmt: skip


def shown_counts(summary: Mapping[str, object]) -> str:
    """Say in a line what a run did; "": nothing."""
    counts = {name: summary[name] for name in _SHOWN if summary.get(name)}
    lost = summary.get("lost")
    if isinstance(lost, Sequence) and lost:
        counts["lost_ranges"] = len(lost)
    return ", ".join(
        f"{value:,} {name.replace('_', ' ').removesuffix('s' if value == 1 else '')}"
        for name, value in counts.items()
    )
