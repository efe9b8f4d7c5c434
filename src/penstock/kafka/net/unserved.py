"""Requests that this server does not serve are counted by kind, and logged once a minute per client
id and API.

A client with such a request either gets its error at once and ends, or asks again for ever. In both
cases the log line says what the client wants.
"""

import enum
import logging
from typing import TYPE_CHECKING, Final

from penstock.kafka.registry import API_VERSIONS_KEY, APIS, Api
from penstock.kafka.wire import header
from penstock.model.errors import InvalidRequestError

if TYPE_CHECKING:
    from penstock.kafka.broker import Broker

logger = logging.getLogger(__name__)

NAMES: Final = {
    71: "GetTelemetrySubscriptions",
    72: "PushTelemetry",
    83: "InitializeShareGroupState",
    84: "ReadShareGroupState",
    85: "WriteShareGroupState",
    86: "DeleteShareGroupState",
    87: "ReadShareGroupStateSummary",
}
"""Kafka's names of APIs that `registry` does not serve, by key."""


class Unserved(enum.StrEnum):
    """Kinds of what is not served: the label of the counter. Names of APIs are in the log."""

    API = "api"
    VERSION = "version"
    """A version that is not served of an API that is."""
    TRANSACTIONS = "transactions"
    COORDINATOR = "coordinator"
    """The coordinator of something other than consumer groups and transactions."""


class UnservedError(InvalidRequestError):
    """A request of an API, or of a version, that ApiVersions does not name: its connection is
    closed, as Kafka does."""

    def __init__(self, kind: Unserved, api: str, detail: str, client_id: str | None) -> None:
        super().__init__("serve", api, detail)
        self.kind = kind
        self.client_id = client_id


def api_versions_or_raise(key: int, version: int, frame: memoryview) -> Api:
    """ApiVersions, if the request is that: it is answered in any version.

    Args:
        frame: of a request of an API that isn't served, or not in this version.

    Raises:
        UnservedError: the request is another.
        MalformedRequestError: the frame's header is cut.
    """
    api = APIS.get(key)
    if api is None:
        kind, name = Unserved.API, NAMES.get(key, f"API key {key}")
        detail = "ApiVersions does not name it"
    elif key == API_VERSIONS_KEY:
        return api
    elif not api.versions_min <= version <= api.versions_max:
        kind, name = Unserved.VERSION, f"version {version} of {api.name}"
        detail = f"served are {api.versions_min} to {api.versions_max}"
    else:
        kind, name = Unserved.TRANSACTIONS, api.name
        detail = f"feature level {api.level} is not on: upgrade the agents that know less"
    # The client id is at the same place in headers of both kinds.
    client_id, _ = header.parse_rest(frame, flexible=False)
    raise UnservedError(kind, name, detail, client_id)


def note_unserved(
    broker: "Broker", kind: Unserved, what: str, detail: str, *, client_id: str | None, client: str
) -> None:
    """Count a request for what is not served, and say who asked.

    Args:
        what: the API's name, or what of it is not served; one of few.
        client: its address.
    """
    broker.instruments.count(f"unserved:{kind}")
    count = broker.seldom.due(f"unserved {what} {client_id}")
    if count:
        logger.info(
            "client %r at %s asked for %s, which this server does not serve: %s (%d times since "
            "the last such line)",
            client_id,
            client,
            what,
            detail,
            count,
        )
