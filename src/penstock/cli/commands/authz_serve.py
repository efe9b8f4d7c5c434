"""`penstock authz serve`."""

from pathlib import Path

import click

from penstock.cli.authz_calls import DEFAULT_HTTP
from penstock.config.addresses import parse_address
from penstock.model.errors import InvalidRequestError


@click.command("serve")
@click.option(
    "--data",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    envvar="PENSTOCK_AUTHZ_DATA",
    show_envvar=True,
    required=True,
    help="Directory of the service's databases; made if it isn't there.",
)
@click.option(
    "--http",
    metavar="HOST:PORT",
    envvar="PENSTOCK_AUTHZ_HTTP",
    default=DEFAULT_HTTP,
    show_default=True,
    show_envvar=True,
    help="Address of the API, of /healthz and of /metrics.",
)
@click.option(
    "--policy",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Set the policy of this file in the environment `default` at the start.",
)
@click.option("--watch", is_flag=True, help="Set it again whenever the file changes.")
@click.option(
    "--test-key",
    is_flag=True,
    help="Accept the key that Oso documents for local tests too; on loopback addresses alone.",
)
@click.option(
    "--fsync/--no-fsync",
    default=True,
    show_default=True,
    help="Sync each write before it is acknowledged; without, a power cut takes the last ones.",
)
@click.option(
    "--journal",
    metavar="URL",
    envvar="PENSTOCK_AUTHZ_JOURNAL",
    show_envvar=True,
    help="Share the journal in this PostgreSQL database with other instances.",
)
@click.option(
    "--journal-name",
    metavar="NAME",
    default="authz",
    show_default=True,
    help="Begin the names of the journal's tables with this: a database may have several.",
)
@click.option(
    "--stale-max",
    metavar="SECONDS",
    type=click.FloatRange(min=1),
    default=60,
    show_default=True,
    help="Stay ready (/readyz) for this time after the shared journal was last seen.",
)
@click.option(
    "--snapshots",
    metavar="URL",
    envvar="PENSTOCK_AUTHZ_SNAPSHOTS",
    show_envvar=True,
    help="Keep snapshots for new instances in this store, and trim the shared journal behind them.",
)
@click.option(
    "--snapshot-entries",
    metavar="N",
    type=click.IntRange(min=1),
    default=500_000,
    show_default=True,
    help="Take snapshots after this many entries of the shared journal.",
)
@click.option(
    "--snapshot-interval",
    metavar="SECONDS",
    type=click.FloatRange(min=1),
    default=900,
    show_default=True,
    help="Take them after this time, too, if there are any entries.",
)
@click.option(
    "--decisions",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    envvar="PENSTOCK_AUTHZ_DECISIONS",
    show_envvar=True,
    help="Append each question and its answer to this file, as a line of JSON.",
)
@click.option(
    "--decisions-share",
    metavar="SHARE",
    type=click.FloatRange(min=0, max=1),
    default=1,
    show_default=True,
    help="Log this share of the questions, drawn by lot.",
)
@click.option(
    "--decisions-redact",
    metavar="FIELD",
    multiple=True,
    help="Leave out the value of this field of requests (actor_id, context_facts, ...), or"
    " `answer`. May be repeated.",
)
@click.option(
    "--connections-max",
    metavar="N",
    type=click.IntRange(min=10),
    default=1_000,
    show_default=True,
    help="Connections that may be open at once.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="Least level of lines in the log, which is standard error.",
)
def command(
    data: Path,
    http: str,
    policy: Path | None,
    watch: bool,
    test_key: bool,
    fsync: bool,
    journal: str | None,
    journal_name: str,
    stale_max: float,
    snapshots: str | None,
    snapshot_entries: int,
    snapshot_interval: float,
    decisions: Path | None,
    decisions_share: float,
    decisions_redact: tuple[str, ...],
    connections_max: int,
    log_level: str,
) -> None:
    """Run the authorization service in the foreground until Ctrl-C or SIGTERM.

    It answers the HTTP API of Oso Cloud, so that Oso's own SDKs work with it. The first start makes
    an environment `default` and a key, which the file `key` in DIR has.
    """
    if watch and policy is None:
        raise InvalidRequestError(
            "serve", "--watch", "it needs the file of a policy", "add --policy FILE"
        )
    from penstock.app.authz.run import run
    from penstock.app.authz.server import AuthzSettings
    from penstock.authz.service.decisions import DecisionSettings
    from penstock.replica.snapshot_turns import SnapshotSettings

    settings = AuthzSettings(
        data=data,
        http=parse_address(http, setting="--http"),
        policy=policy,
        watches=watch,
        with_test_key=test_key,
        fsync=fsync,
        connections_max=connections_max,
        journal=journal or "",
        journal_name=journal_name,
        stale_s=stale_max,
        snapshots=snapshots or "",
        snapshot_settings=SnapshotSettings(
            entries=snapshot_entries,
            interval_s=snapshot_interval,
            look_s=min(10.0, snapshot_interval),
        ),
        decisions=(
            DecisionSettings(
                path=decisions, share=decisions_share, redacted=frozenset(decisions_redact)
            )
            if decisions is not None
            else None
        ),
    )
    run(settings, log_level=log_level)
