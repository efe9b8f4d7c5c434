"""Options that all commands of `penstock pipeline` share, and what is made of them."""

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import click

from penstock.cli.client.http import DEFAULT_URL, base_url
from penstock.cli.options import Command, parse_pairs, together
from penstock.model.errors import NotFoundError

if TYPE_CHECKING:
    from penstock.pipeline.client import DoorOptions
    from penstock.pipeline.engine import Engine
    from penstock.pipeline.engine_choice import EngineChoice
    from penstock.pipeline.tables.settings import CatalogSettings

ENVIRONMENT_PREFIX: Final = "PENSTOCK_PIPELINE_"
ENGINES: Final = ("spark", "local")


def pipeline_option(name: str, *names: str, **attributes: Any) -> Callable[[Command], Command]:
    """An option that the environment may give, too: PENSTOCK_PIPELINE_ and the option's name, as in
    the section [pipeline] of a file.

    Args:
        name: with its dashes.
        names, attributes: as `click.option` takes them.
    """
    variable = ENVIRONMENT_PREFIX + name.removeprefix("--").replace("-", "_").upper()
    return click.option(name, *names, envvar=variable, show_envvar=True, **attributes)


def door_options(command: Command) -> Command:
    """--url, --secret-file and --access: how the cluster is reached; see `make_door`."""
    return together(
        pipeline_option(
            "--url",
            "urls",
            metavar="URL",
            multiple=True,
            default=(DEFAULT_URL,),
            show_default=True,
            help="HTTP port of an agent, or its URL; several are tried in turn.",
        ),
        pipeline_option(
            "--secret-file",
            metavar="FILE",
            default="",
            help="A file with the cluster's secret, on this machine and on executors. Else "
            "PENSTOCK_CLUSTER_SECRET_FILE or PENSTOCK_CLUSTER_SECRET.",
        ),
        pipeline_option(
            "--access",
            "objects",
            type=click.Choice(("auto", "agent", "ambient")),
            default="auto",
            show_default=True,
            help="How objects are reached: by presigned URLs where the store can make them, "
            "through the agent, or with the executors' own credentials.",
        ),
    )(command)


def make_door(urls: tuple[str, ...], secret_file: str, objects: str) -> "DoorOptions":
    """What the options of `door_options` say. Raises: InvalidRequestError, NotFoundError."""
    made: DoorOptions = _imported("penstock.pipeline.client", "DoorOptions")(
        urls=tuple(base_url(url) for url in urls), secret_file=secret_file, objects=objects
    )
    return made


def catalog_options(command: Command) -> Command:
    """--warehouse, --catalog, --catalog-property and --registry: where tables are, and what their
    values are read by; see `make_catalog`."""
    return together(
        pipeline_option(
            "--warehouse",
            metavar="LOCATION",
            default="warehouse",
            show_default=True,
            help="Of the tables: a directory, or s3://BUCKET/PREFIX.",
        ),
        pipeline_option(
            "--catalog",
            metavar="NAME",
            default="penstock",
            show_default=True,
            help="The catalog's name, also in PyIceberg's configuration.",
        ),
        pipeline_option(
            "--catalog-property",
            "catalog_properties",
            metavar="KEY=VALUE",
            multiple=True,
            help="PyIceberg's, such as type=rest or uri=...; without any, SQLite in the "
            "warehouse. Secrets come from the environment: PYICEBERG_CATALOG__NAME__TOKEN.",
        ),
        registry_option,
    )(command)


def registry_option(command: Command) -> Command:
    """--registry, which `catalog_options` holds."""
    return pipeline_option(
        "--registry",
        metavar="URL",
        default="",
        help="Schema registry of typed tables; values are of its wire format.",
    )(command)


def make_catalog(
    warehouse: str, catalog: str, catalog_properties: tuple[str, ...]
) -> "CatalogSettings":
    """What the options of `catalog_options` say. Raises: click.BadParameter, NotFoundError."""
    made: CatalogSettings = _imported("penstock.pipeline.tables.settings", "CatalogSettings")(
        warehouse=warehouse,
        name=catalog,
        properties=parse_pairs(catalog_properties, option="--catalog-property"),
    )
    return made


def engine_options(command: Command) -> Command:
    """--engine, --master, --memory, --workers and --ui-port; see `make_engine`."""
    return together(
        pipeline_option(
            "--engine",
            type=click.Choice(ENGINES),
            help="Spark, or threads of this machine.  [default: spark where PySpark is installed, "
            "else local]",
        ),
        pipeline_option(
            "--master",
            metavar="URL",
            help="Spark's: local[N], a cluster's URL, or sc://HOST:PORT for Spark Connect.  "
            "[default: SPARK_REMOTE or SPARK_MASTER of the environment, else local[*]]",
        ),
        pipeline_option(
            "--memory",
            metavar="SIZE",
            default="1g",
            show_default=True,
            help="Of the Java that a local Spark runs in.",
        ),
        pipeline_option(
            "--workers",
            metavar="N",
            type=click.IntRange(min=0),
            default=0,
            help="Threads of the local engine; 0: one per core.",
        ),
        pipeline_option(
            "--ui-port",
            metavar="PORT",
            type=click.IntRange(min=-1, max=65535),
            default=-1,
            help="Port of Spark's web page, of a local Spark on 127.0.0.1; 0: any free one. "
            "Without it there is none.",
        ),
    )(command)


def make_engine(
    engine: str | None,
    master: str | None,
    memory: str,
    workers: int,
    ui_port: int,
    *,
    conf: Mapping[str, str] | None = None,
) -> "EngineChoice":
    """What the options of `engine_options` say.

    Args:
        conf: further settings of Spark.

    Raises:
        InvalidRequestError: a master for the local engine.
    """
    made: EngineChoice = _imported("penstock.pipeline.engine_choice", "choose_engine")(
        engine, master, memory=memory, workers=workers, ui_port=ui_port, conf=conf
    )
    return made


@contextmanager
def open_engine(
    choice: "EngineChoice", *, urls: Sequence[str] = (), warehouse: str = ""
) -> Iterator["Engine"]:
    """The engine of `make_engine`, stopped at the end. A line says what runs, and where.

    Args:
        urls: of the agents.
        warehouse: of the tables.

    Raises:
        NotFoundError: what it needs is not installed.
    """
    say_start(choice, urls=urls, warehouse=warehouse)
    with _imported("penstock.pipeline.engine_choice", "opened")(choice) as engine:
        yield engine


def say_start(choice: "EngineChoice", *, urls: Sequence[str] = (), warehouse: str = "") -> None:
    """Write the line that says what runs, and where, to standard error."""
    parts = [str(choice)]
    if warehouse:
        parts.append(f"warehouse {warehouse}")
    if urls:
        parts.append(f"agents {', '.join(urls)}")
    click.echo(f"penstock: {', '.join(parts)}", err=True)


def _imported(module: str, name: str) -> Any:
    """A name of a module that needs what only the extra `spark` installs."""
    try:
        return getattr(importlib.import_module(module), name)
    except ImportError as error:
        if (error.name or "").startswith("penstock"):
            raise
        raise NotFoundError(
            "start the pipeline",
            error.name or module,
            "the package is not installed",
            "pip install 'penstock[spark]'",
        ) from error
