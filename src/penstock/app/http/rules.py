"""The permission that each route of the HTTP port needs: one row per method and path. Pure.

A route without a row is not served: `penstock.app.http.guard` looks its row up when the port is
made. docs/security.md has the same rows, and a test holds one to the other.
"""

from typing import Final, NamedTuple

from penstock.pipeline import api_messages as api
from penstock.security.acl import Operation


class Rule(NamedTuple):
    """The needs of a call.

    Args:
        cluster: an operation on the cluster, looked at before the call's handler runs.
        items: what the handler itself looks at, in words; "": nothing. A handler that has such
            words and answers success without having asked is a bug, and answered 500.
        open: whether it is answered without credentials.
        administers: whether it changes something, for the audit log.
    """

    cluster: Operation | None = None
    items: str = ""
    open: bool = False
    administers: bool = False


def _of_cluster(operation: Operation, items: str = "", *, administers: bool = True) -> Rule:
    return Rule(operation, items, administers=administers)


_LOOK: Final = _of_cluster(Operation.DESCRIBE, administers=False)
_ADMINISTER: Final = _of_cluster(Operation.ALTER)
_JOB: Final = api.JOBS_PATH + "/{job:int}"
_OBJECT: Final = api.OBJECTS_PATH + "/{key:path}"
_OWN_JOB: Final = "the job is the caller's own, or ALTER on the cluster"
_OWN_COMMIT: Final = "the job is the caller's own"

RULES: Final[dict[tuple[str, str], Rule]] = {
    ("GET", "/healthz"): Rule(open=True),
    ("GET", "/"): _LOOK,
    ("GET", "/metrics"): _LOOK,
    ("GET", "/readyz"): _LOOK,
    ("GET", "/v1/status"): _LOOK,
    ("GET", "/v1/keys"): _LOOK,
    ("POST", "/v1/keys"): _ADMINISTER,
    ("DELETE", "/v1/keys/{key}"): _ADMINISTER,
    ("POST", "/v1/backup"): _of_cluster(
        Operation.ALTER, "a caller that shows a credential; READ on every topic"
    ),
    ("GET", "/v1/agents"): _LOOK,
    ("POST", "/v1/agents/{agent:int}/drain"): _ADMINISTER,
    ("DELETE", "/v1/agents/{agent:int}"): _ADMINISTER,
    ("POST", "/v1/takeover"): _ADMINISTER,
    ("POST", "/v1/repair/damage"): _ADMINISTER,
    ("POST", "/v1/repair/scan"): _ADMINISTER,
    ("POST", "/v1/repair/lost"): _LOOK,
    ("POST", "/v1/repair/rebuild"): _ADMINISTER,
    ("POST", "/v1/repair/histories"): _ADMINISTER,
    ("GET", api.INFO_PATH): Rule(items="nothing more than a credential"),
    ("POST", api.JOBS_PATH): Rule(
        items="READ or WRITE on some topic; of kind pin: READ on its topic", administers=True
    ),
    ("GET", api.JOBS_PATH): Rule(items="others' jobs: DESCRIBE on the cluster"),
    ("GET", _JOB): Rule(items="the job is the caller's own, or DESCRIBE on the cluster"),
    ("POST", _JOB + "/renew"): Rule(items=_OWN_JOB),
    ("DELETE", _JOB): Rule(items=_OWN_JOB, administers=True),
    ("POST", api.TOPICS_PATH): Rule(items="DESCRIBE on each topic; others are left out"),
    ("POST", api.OFFSETS_PATH): Rule(items="DESCRIBE on each topic"),
    ("POST", api.RUNS_PATH): Rule(
        items="READ on each topic; of everything: READ on every topic, DESCRIBE on the cluster"
    ),
    ("POST", api.PRODUCERS_PATH): Rule(items="READ on each topic"),
    ("GET", api.RECORDS_PATH): Rule(items="READ on the topic"),
    ("POST", api.ACCESSES_PATH): Rule(
        items="to read: READ on every topic in the object, else no URL; to write: the job is the "
        "caller's own"
    ),
    ("GET", _OBJECT): Rule(
        items="READ on every topic in the object, or on the topic of each byte of the range"
    ),
    ("PUT", _OBJECT): Rule(items=_OWN_COMMIT),
    ("GET", api.STORED_PATH + "/{prefix:str}"): _LOOK,
    ("POST", api.REPLACE_PATH): Rule(
        items=f"READ, WRITE and DELETE on each topic; {_OWN_COMMIT}", administers=True
    ),
    ("POST", api.WRITE_PATH): Rule(
        items="WRITE on each topic, WRITE on the transactional id that is the writer's; "
        + _OWN_COMMIT
    ),
    ("GET", api.WRITERS_PATH + "/{writer:path}"): Rule(
        items="DESCRIBE on the transactional id that is the writer's"
    ),
    ("GET", api.TABLES_PATH): Rule(items="DESCRIBE on each table's topic; others are left out"),
    ("PUT", api.TABLES_PATH): Rule(
        items="READ on the topic, READ on the group that is the table's", administers=True
    ),
    ("DELETE", api.TABLES_PATH): Rule(
        items="READ on the topic, DELETE on the group that is the table's", administers=True
    ),
}
