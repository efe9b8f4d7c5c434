"""The settings of a table choose its kind."""

from penstock.pipeline.client import PipelineClient
from penstock.pipeline.engine import Engine
from penstock.pipeline.tables.kinds import TableKind
from penstock.pipeline.tables.raw import RawKind
from penstock.pipeline.tables.settings import RAW, UPSERT, TableSettings
from penstock.pipeline.tables.typed import TypedKind
from penstock.pipeline.tables.upsert import UpsertKind


def kind_of(settings: TableSettings, client: PipelineClient, engine: Engine) -> TableKind:
    """Open the kind that the settings ask for."""
    if settings.mode == UPSERT:
        return UpsertKind(settings, client, engine)
    if settings.schema == RAW:
        return RawKind(settings, client, engine)
    return TypedKind(settings, client, engine)
