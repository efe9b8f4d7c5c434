"""An agent's membership, put together: the same in a cluster and among workers of a host."""

from penstock.app.limits import membership_settings
from penstock.app.parts import Environment
from penstock.cluster.membership import Membership
from penstock.config.settings import ServerSettings
from penstock.metadata.ordering import Ordering
from penstock.metadata.view import MetadataView


def make_membership(
    settings: ServerSettings,
    environment: Environment,
    *,
    me: int,
    epoch: int,
    order: Ordering,
    view: MetadataView,
) -> Membership:
    """Not started. It is to beat before the agent recovers its WAL, which may take longer than
    the others wait for a beat."""
    return Membership(
        me=me,
        epoch=epoch,
        order=order,
        view=view,
        clock=environment.clock,
        on_fenced=environment.on_fatal,
        settings=membership_settings(settings),
    )
