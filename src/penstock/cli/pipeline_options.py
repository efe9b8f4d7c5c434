"""Commands of `penstock pipeline` share these options, and make clients and engines from them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from penstock.cli.client.http import DEFAULT_URL, base_url
from penstock.cli.options import Command, packed, parse_pairs

if TYPE_CHECKING:
    from penstock.pipeline.client import ClientOptions, PipelineClient
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


class ApiOptions(msgspec.Struct, frozen=True):
    """The values of `api_options`."""

    urls: tuple[str, ...]
    secret_file: str
    objects: str

    def client_options(self) -> "ClientOptions":
        """Return the options of a client. Raises: InvalidRequestError."""
        from penstock.pipeline.client import ClientOptions

        return ClientOptions(
            urls=tuple(base_url(url) for url in self.urls),
            secret_file=self.secret_file,
            objects=self.objects,
        )


def api_options(command: Command) -> Command:
    """Add --url, --secret-file and --access, which say how to reach a cluster, as `api`."""
    return packed(
        "api",
        ApiOptions,
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


class CatalogOptions(msgspec.Struct, frozen=True):
    """The values of `catalog_options`."""

    warehouse: str
    catalog: str
    catalog_properties: tuple[str, ...]

    def settings(self) -> "CatalogSettings":
        """Return the catalog's settings. Raises: click.BadParameter."""
        from penstock.pipeline.tables.settings import CatalogSettings

        return CatalogSettings(
            warehouse=self.warehouse,
            name=self.catalog,
            properties=parse_pairs(self.catalog_properties, option="--catalog-property"),
        )


def catalog_options(command: Command) -> Command:
    """Add --warehouse, --catalog and --catalog-property, which say where tables are, as `catalog`,
    and --registry, which says how their values are read."""
    return packed(
        "catalog",
        CatalogOptions,
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
    )(registry_option(command))


def registry_option(command: Command) -> Command:
    """Add --registry, which `catalog_options` adds, too."""
    return pipeline_option(
        "--registry",
        metavar="URL",
        default="",
        help="URL of the schema registry of typed tables, whose values have its wire format.",
    )(command)


class EngineOptions(msgspec.Struct, frozen=True):
    """The values of `engine_options`."""

    engine: str | None
    master: str | None
    memory: str
    workers: int
    ui_port: int

    @property
    def is_given(self) -> bool:
        """Whether the user asked for an engine or a master."""
        return self.engine is not None or self.master is not None

    def choose(self, conf: Mapping[str, str] | None = None) -> "EngineChoice":
        """Choose an engine.

        Args:
            conf: further settings of Spark.

        Raises:
            InvalidRequestError: the local engine is to have a master.
        """
        from penstock.pipeline.engine_choice import choose_engine

        return choose_engine(
            self.engine,
            self.master,
            memory=self.memory,
            workers=self.workers,
            ui_port=self.ui_port,
            conf=conf,
        )


def engine_options(command: Command) -> Command:
    """Add --engine, --master, --memory, --workers and --ui-port as `engine`."""
    return packed(
        "engine",
        EngineOptions,
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


@contextmanager
def open_pipeline(
    api: ApiOptions,
    engine: EngineOptions,
    *,
    conf: Mapping[str, str] | None = None,
    warehouse: str = "",
) -> Iterator[tuple["PipelineClient", "Engine"]]:
    """Yield a client of a cluster, and the engine that runs its job; see `open_engine`.

    Args:
        conf: further settings of Spark.
    """
    options, choice = api.client_options(), engine.choose(conf)
    with (
        open_client(options) as client,
        open_engine(choice, urls=options.urls, warehouse=warehouse) as running,
    ):
        yield client, running


def open_client(options: "ClientOptions") -> "PipelineClient":
    """Make a client that says on standard error when no agent answers for a while."""
    from penstock.pipeline.client import PipelineClient

    return PipelineClient(options, tell=lambda text: click.echo(f"penstock: {text}", err=True))


@contextmanager
def open_engine(
    choice: "EngineChoice", *, urls: Sequence[str] = (), warehouse: str = ""
) -> Iterator["Engine"]:
    """Yield the engine that was chosen, and stop it at the end. A line on standard error
    says what runs, and where.

    Args:
        urls: the agents' URLs, for this line.
        warehouse: the warehouse of the tables, for this line.

    Raises:
        NotFoundError: a package that the engine needs is not installed.
    """
    say_start(choice, urls=urls, warehouse=warehouse)
    from penstock.pipeline.engine_choice import opened

    with opened(choice) as engine:
        yield engine


def say_start(choice: "EngineChoice", *, urls: Sequence[str] = (), warehouse: str = "") -> None:
    """Write a line to standard error that says what runs, and where."""
    parts = [str(choice)]
    if warehouse:
        parts.append(f"warehouse {warehouse}")
    if urls:
        parts.append(f"agents {', '.join(urls)}")
    click.echo(f"penstock: {', '.join(parts)}", err=True)
