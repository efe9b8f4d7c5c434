"""An operation on the cluster is allowed, or refused with an error and its message."""

from penstock.kafka.access import refusal_text
from penstock.kafka.context import RequestContext
from penstock.kafka.outcomes import Outcome
from penstock.security.acl import Operation


def cluster_refusal(context: RequestContext, operation: Operation) -> Outcome | None:
    """Return why the client may not do this to the cluster; None: it may."""
    error = context.access.cluster(operation)
    return Outcome(error, refusal_text(error)) if error else None
