"""`penstock verify` looks at tables, too: those that the cluster has notes of, in one catalog."""

from penstock.model.errors import CorruptDataError, NotFoundError
from penstock.pipeline.client import PipelineClient
from penstock.pipeline.engine import Engine
from penstock.pipeline.table_plan import has_table
from penstock.pipeline.tables.damage import check_table
from penstock.pipeline.tables.settings import RAW, CatalogSettings, TableSettings
from penstock.recovery.verify_report import Finding, FindingKind, VerifyReport


def verify_tables(
    client: PipelineClient, engine: Engine, catalog: CatalogSettings, report: VerifyReport
) -> list[str]:
    """Read the files of each table's current snapshot, and add what is damaged to the report.

    Returns: the tables that were looked at.

    Raises:
        InvalidRequestError: the catalog can't be opened.
        RetryableError: an agent, the store or the catalog does not answer.
    """
    topics = {topic.topic_id: topic for topic in client.topics().topics}
    done = []
    for row in sorted(client.tables(), key=lambda row: row.table):
        topic = topics.get(row.topic_id)
        if topic is None or not row.offsets:
            # A table of a deleted topic is its readers'; one without offsets was never made.
            continue
        # No value is decoded, so that no registry is needed.
        settings = TableSettings(
            topic=topic.name, catalog=catalog, table=row.table, schema=RAW, key_kind=RAW
        )
        done.append(row.table)
        try:
            check = check_table(client, engine, settings, rebuilds=False)
        except NotFoundError as error:
            if not has_table(topic):
                # Given up, and dropped since.
                continue
            found = [(FindingKind.MISSING, f"table {row.table}", str(error))]
        except CorruptDataError as error:
            found = [(FindingKind.DAMAGED, f"table {row.table}", str(error))]
        else:
            found = [(FindingKind.DAMAGED, one.url, one.detail) for one in check.damaged]
        report.findings += [
            Finding(kind=kind, subject=subject, detail=detail) for kind, subject, detail in found
        ]
    return done
