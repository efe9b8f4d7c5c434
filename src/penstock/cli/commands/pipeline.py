"""`penstock pipeline` runs jobs that read and write the bucket without loading the agents."""

from collections.abc import Mapping
from typing import Final

import click

from penstock.cli.lazy import Lazy, LazyGroup

COMMANDS: Final[Mapping[str, Lazy]] = {
    "run": Lazy("pipeline_run", "Run all jobs on a schedule, until Ctrl-C or SIGTERM."),
    "plan": Lazy("pipeline_plan", "Show what compaction and tables would do now, and why."),
    "compact": Lazy("pipeline_compact", "Join short runs, and clean compacted topics by key."),
    "table": Lazy("pipeline_table", "Bring a topic's Iceberg table up to date."),
    "replay-dead-letters": Lazy(
        "pipeline_replay", "Add dead letters to a topic's table that can be rows by now."
    ),
    "export": Lazy("pipeline_export", "Write topics as Parquet files."),
    "import": Lazy("pipeline_import", "Write an export into a topic, once."),
}


@click.group(
    "pipeline",
    cls=LazyGroup,
    lazy=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"]},
)
def command() -> None:
    """Run compaction, tables, export and import, on this machine or on Spark.

    These jobs plan and commit through an agent's HTTP port. They need `pip install
    'penstock[spark]'`.
    """
