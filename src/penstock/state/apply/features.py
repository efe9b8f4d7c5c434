"""Applying commands about the cluster as a whole: its id, and entries without an effect."""

from penstock.state.answers import AnyAnswer, Done
from penstock.state.apply.context import ApplyContext
from penstock.state.commands import Digest, InitCluster, Noop


def init_cluster(context: ApplyContext, command: InitCluster) -> AnyAnswer:
    """The cluster's id, given once."""
    if not context.tables.meta_text("cluster_id"):
        context.tables.set_meta("cluster_id", command.cluster_id)
    return Done()


def noop(_context: ApplyContext, _command: Noop) -> AnyAnswer:
    """Changes nothing."""
    return Done()


def check_digest(_context: ApplyContext, _command: Digest) -> AnyAnswer:
    """Takes a position. No release proposes it; see `apply_digests`."""
    return Done()
