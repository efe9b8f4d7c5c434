"""`penstock pipeline`: jobs that read and write the bucket beside the agents."""

from collections.abc import Mapping
from typing import Final

import click

from penstock.cli.lazy import Lazy, LazyGroup

COMMANDS: Final[Mapping[str, Lazy]] = {
    "run": Lazy("pipeline_run", "Run all jobs on a schedule, until it is told to end."),
    "plan": Lazy("pipeline_plan", "Show what compaction and tables would do now, and why."),
    "compact": Lazy("pipeline_compact", "Join short runs, and clean compacted topics by key."),
    "table": Lazy("pipeline_table", "Bring a topic's Iceberg table up to date."),
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
    """Compaction, tables, export and import: jobs beside the agents, here or on Spark.

    They plan and commit through an agent's HTTP port, and need `pip install 'penstock[spark]'`.
    """
