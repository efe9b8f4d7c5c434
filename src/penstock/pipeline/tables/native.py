"""Upkeep by Iceberg's own procedures, in a Spark session that has Iceberg's runtime.

It joins files and expires snapshots as `penstock.pipeline.tables.maintenance` does, and also where
others' row-level deletes are. Offsets are found behind it: they are in the table's property, too.
Orphans stay with ours, since Iceberg doesn't know of staged dead letters.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from pyiceberg.types import strtobool

from penstock.model.errors import ConflictError, InvalidRequestError, RetryableError
from penstock.pipeline.engine import Engine
from penstock.pipeline.tables.catalog import catalog_properties
from penstock.pipeline.tables.settings import CatalogSettings, TableSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXTENSIONS: Final = {
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
}
"""Settings that a session has to be started with. Without the runtime it ignores them, with a
warning."""
_CATALOG_CLASS: Final = "org.apache.iceberg.spark.SparkCatalog"
_SQLITE: Final = "sqlite:///"
_S3_FILES: Final = "org.apache.iceberg.aws.s3.S3FileIO"
_S3_NAMES: Final = {"s3.endpoint": "s3.endpoint", "s3.region": "client.region"}
"""PyIceberg's names of the S3 properties of Iceberg's runtime. The runtime finds credentials in the
environment, as PyIceberg does."""
_S3_HOSTS: Final = "s3.force-virtual-addressing"
_CONFLICTS: Final = ("CommitFailedException", "ValidationException")
_HINT: Final = (
    "Spark 4.1 with PYSPARK_SUBMIT_ARGS='--packages "
    "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0,org.xerial:sqlite-jdbc:3.50.3.0 "
    "pyspark-shell', for example, and org.apache.iceberg:iceberg-aws-bundle:1.12.0 for S3; without "
    "--native, no runtime is needed"
)


def session_of(engine: Engine) -> "SparkSession":
    """The engine's session. Raises: InvalidRequestError: it has none."""
    session: SparkSession | None = getattr(engine, "session", None)
    if session is None:
        raise InvalidRequestError(
            "maintain table", "by Iceberg's procedures", "there is no Spark", "--engine spark"
        )
    return session


def join_natively(
    session: "SparkSession", settings: TableSettings, *, files_min: int
) -> tuple[int, int]:
    """Join a table's small files.

    Args:
        session: uses its catalog of the settings' name, or gets one.
        settings: resolved settings.

    Returns:
        How many files became how many.

    Raises:
        InvalidRequestError: the session has no runtime, or can't use the catalog.
        ConflictError: the table moved on meanwhile; its small files are still there next time.
        RetryableError: the procedure failed; what it has committed is whole.
    """
    catalog = settings.catalog.name
    for key, value in _catalog_conf(session, settings.catalog).items():
        session.conf.set(key, value)
    name = _name_of(settings)
    # The table is looked up before anything else, so that a missing runtime gets its own error.
    _ask(session, f"DESCRIBE TABLE {name}", settings, is_first=True)
    target = settings.target_file_bytes
    options = {
        "min-input-files": files_min,
        "target-file-size-bytes": target,
        "min-file-size-bytes": target // 2,
    }
    written = ", ".join(f"'{key}', '{value}'" for key, value in options.items())
    joined = _ask(
        session,
        f"CALL `{catalog}`.system.rewrite_data_files(table => '{name}', options => map({written}))",
        settings,
    )[0]
    return joined["rewritten_data_files_count"], joined["added_data_files_count"]


def expire_natively(session: "SparkSession", settings: TableSettings, *, before_ms: int) -> int:
    """Expire a table's snapshots of before a moment but for the current one, in a session that
    `join_natively` has been in; how many.

    Raises:
        RetryableError: the procedure failed, or the table moved on too often meanwhile.
    """
    name = _name_of(settings)
    moment = datetime.fromtimestamp(before_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    try:
        before = _snapshots(session, name, settings)
        _ask(
            session,
            f"CALL `{settings.catalog.name}`.system.expire_snapshots(table => '{name}', "
            f"older_than => TIMESTAMP '{moment} UTC', retain_last => 1)",
            settings,
        )
        return max(0, before - _snapshots(session, name, settings))
    except ConflictError as error:
        raise RetryableError(error.operation, error.subject, error.detail) from error


def _name_of(settings: TableSettings) -> str:
    # With the catalog's name always: a first part that is a catalog's is taken for one.
    return ".".join(f"`{part}`" for part in (settings.catalog.name, *settings.identifier))


def _catalog_conf(session: "SparkSession", settings: CatalogSettings) -> dict[str, str]:
    """Return the session's settings for the catalog; none where a person has made them.

    Raises:
        InvalidRequestError: the catalog is neither SQLite nor REST: their properties differ too
            much.
    """
    prefix = f"spark.sql.catalog.{settings.name}"
    if session.conf.get(prefix, None) is not None:
        return {}
    conf = {prefix: _CATALOG_CLASS, f"{prefix}.cache-enabled": "false"}
    for key, value in _properties(catalog_properties(settings)).items():
        conf[f"{prefix}.{key}"] = value
    if f"{prefix}.type" in conf:
        return conf
    raise InvalidRequestError(
        "maintain table",
        settings.name,
        "its properties are PyIceberg's alone",
        f"{prefix} and {prefix}.* among Spark's settings say the same to Iceberg's runtime",
    )


def _properties(properties: Mapping[str, str]) -> dict[str, str]:
    uri = properties.get("uri", "")
    if uri.startswith(_SQLITE):
        place = {"type": "jdbc", "uri": f"jdbc:sqlite:{uri.removeprefix(_SQLITE)}"}
    elif uri.startswith(("http://", "https://")):
        place = {"type": "rest", "uri": uri}
    else:
        return {}
    return place | {"warehouse": properties["warehouse"], **_s3_properties(properties)}


def _s3_properties(properties: Mapping[str, str]) -> dict[str, str]:
    if not properties["warehouse"].startswith("s3"):
        return {}
    found = {_S3_NAMES[key]: properties[key] for key in _S3_NAMES if properties.get(key)}
    if "s3.endpoint" in found and not strtobool(properties.get(_S3_HOSTS, "false")):
        # As PyIceberg does: a store of one's own mostly has no host name for each bucket.
        found["s3.path-style-access"] = "true"
    return {"io-impl": _S3_FILES, **found}


def _snapshots(session: "SparkSession", name: str, settings: TableSettings) -> int:
    return len(_ask(session, f"SELECT snapshot_id FROM {name}.snapshots", settings))  # noqa: S608


def _ask(
    session: "SparkSession", text: str, settings: TableSettings, *, is_first: bool = False
) -> list[dict[str, Any]]:
    """Rows of a statement. Raises: ConflictError: another commit was first; and as above."""
    try:
        return [row.asDict() for row in session.sql(text).collect()]
    except Exception as error:
        if type(error).__module__.split(".")[0] not in {"pyspark", "py4j", "grpc"}:
            raise
        detail = str(error)
        if any(word in detail for word in _CONFLICTS):
            raise ConflictError("maintain table", settings.full_name, detail[:500]) from error
        if is_first:
            raise InvalidRequestError(
                "maintain table",
                settings.full_name,
                "Spark doesn't find it by Iceberg's runtime: "
                + detail.strip().split("\n")[0][:500],
                _HINT,
            ) from error
        raise RetryableError("maintain table", settings.full_name, detail[:1000]) from error
