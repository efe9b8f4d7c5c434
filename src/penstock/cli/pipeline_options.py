"""Commands of `penstock pipeline` share these options, and make clients and engines from them."""

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
    """Make an option that the environment may give, too, as PENSTOCK_PIPELINE_NAME, and the section
    [pipeline] of a file.

    Args:
        name: the option's name with its dashes.
        names, attributes: as `click.option` takes them.
    """
    variable = ENVIRONMENT_PREFIX + name.removeprefix("--").replace("-", "_").upper()
    return click.option(name, *names, envvar=variable, show_envvar=True, **attributes)


def door_options(command: Command) -> Command:
    """Add --url, --secret-file and --access, which say how to reach a cluster; see `make_door`."""
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
            help="A file with the cluster's secret, on this machine and on executors. Without it "
            "PENSTOCK_CLUSTER_SECRET_FILE or PENSTOCK_CLUSTER_SECRET gives the secret.",
        ),
        pipeline_option(
            "--access",
            "objects",
            type=click.Choice(("auto", "agent", "ambient")),
            default="auto",
            show_default=True,
            help="How objects are reached: auto: by presigned URLs where the store can make them, "
            "through the agent, or with the executors' own credentials.",
        ),
    )(command)


def make_door(urls: tuple[str, ...], secret_file: str, objects: str) -> "DoorOptions":
    """Read the options of `door_options`. Raises: InvalidRequestError, NotFoundError."""
    made: DoorOptions = _imported("penstock.pipeline.client", "DoorOptions")(
        urls=tuple(base_url(url) for url in urls), secret_file=secret_file, objects=objects
    )
    return made


def catalog_options(command: Command) -> Command:
    """Add --warehouse, --catalog, --catalog-property and --registry, which say where tables are and
    how their values are read; see `make_catalog`."""
    return together(
        pipeline_option(
            "--warehouse",
            metavar="LOCATION",
            default="warehouse",
            show_default=True,
            help="Where tables are: a directory, or s3://BUCKET/PREFIX.",
        ),
        pipeline_option(
            "--catalog",
            metavar="NAME",
            default="penstock",
            show_default=True,
            help="The catalog's name, which PyIceberg's configuration may describe.",
        ),
        pipeline_option(
            "--catalog-property",
            "catalog_properties",
            metavar="KEY=VALUE",
            multiple=True,
            help="A property of PyIceberg's catalog, such as type=rest or uri=...; without any, "
            "the catalog is SQLite in the warehouse. Secrets come from the environment: "
            "PYICEBERG_CATALOG__NAME__TOKEN.",
        ),
        registry_option,
    )(command)


def registry_option(command: Command) -> Command:
    """Add --registry, which `catalog_options` adds, too."""
    return pipeline_option(
        "--registry",
        metavar="URL",
        default="",
        help="URL of the schema registry of typed tables, whose values have its wire format.",
    )(command)


def make_catalog(
    warehouse: str, catalog: str, catalog_properties: tuple[str, ...]
) -> "CatalogSettings":
    """Read the options of `catalog_options`. Raises: click.BadParameter, NotFoundError."""
    made: CatalogSettings = _imported("penstock.pipeline.tables.settings", "CatalogSettings")(
        warehouse=warehouse,
        name=catalog,
        properties=parse_pairs(catalog_properties, option="--catalog-property"),
    )
    return made


def engine_options(command: Command) -> Command:
    """Add --engine, --master, --memory, --workers and --ui-port; see `make_engine`."""
    return together(
        pipeline_option(
            "--engine",
            type=click.Choice(ENGINES),
            help="spark, or local: threads of this machine.  [default: spark where PySpark is "
            "installed, else local]",
        ),
        pipeline_option(
            "--master",
            metavar="URL",
            help="Spark's master: local[N], a cluster's URL, or sc://HOST:PORT for Spark Connect.  "
            "[default: SPARK_REMOTE or SPARK_MASTER of the environment, else local[*]]",
        ),
        pipeline_option(
            "--memory",
            metavar="SIZE",
            default="1g",
            show_default=True,
            help="Memory of the Java process that a local Spark runs in.",
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
            help="Port of Spark's web page, which a local Spark serves on 127.0.0.1; 0: any free "
            "port. Without this option there is no page.",
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
    """Read the options of `engine_options`.

    Args:
        conf: further settings of Spark.

    Raises:
        InvalidRequestError: the local engine is to have a master.
    """
    made: EngineChoice = _imported("penstock.pipeline.engine_choice", "choose_engine")(
        engine, master, memory=memory, workers=workers, ui_port=ui_port, conf=conf
    )
    return made


@contextmanager
def open_engine(
    choice: "EngineChoice", *, urls: Sequence[str] = (), warehouse: str = ""
) -> Iterator["Engine"]:
    """Yield the engine that `make_engine` chose, and stop it at the end. A line on standard error
    says what runs, and where.

    Args:
        urls: the agents' URLs, for this line.
        warehouse: the warehouse of the tables, for this line.

    Raises:
        NotFoundError: a package that the engine needs is not installed.
    """
    say_start(choice, urls=urls, warehouse=warehouse)
    with _imported("penstock.pipeline.engine_choice", "opened")(choice) as engine:
        yield engine


def say_start(choice: "EngineChoice", *, urls: Sequence[str] = (), warehouse: str = "") -> None:
    """Write a line to standard error that says what runs, and where."""
    parts = [str(choice)]
    if warehouse:
        parts.append(f"warehouse {warehouse}")
    if urls:
        parts.append(f"agents {', '.join(urls)}")
    click.echo(f"penstock: {', '.join(parts)}", err=True)


def _imported(module: str, name: str) -> Any:
    """Import a name from a module that needs the extra `spark`."""
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
