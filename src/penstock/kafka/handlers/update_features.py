"""UpdateFeatures 0 to 2: features come on by themselves, with the cluster's feature level.

A request for the level that is finalized has nothing to do. A raise comes once every agent knows
it, without a command; a feature level is never lowered (docs/formats/journal.md). Both are refused
with INVALID_UPDATE_VERSION, as Kafka refuses what its controllers can't do, and so is an unknown
feature. One refused feature refuses the request (KIP-584).
"""

from typing import TYPE_CHECKING, Final

from penstock.kafka.cluster_permission import cluster_refusal
from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode
from penstock.kafka.handlers.api_versions import finalized_features
from penstock.kafka.long_answer import Answer
from penstock.kafka.outcomes import Outcome
from penstock.kafka.wire.arrays import ArrayWriter
from penstock.kafka.wire.schema import build, response_types
from penstock.security.acl import Operation

if TYPE_CHECKING:
    from kio.schema.update_features.v2.request import UpdateFeaturesRequest

UPGRADE: Final = 1
UPGRADE_TYPES: Final = (UPGRADE, 2, 3)
"""An upgrade, a safe downgrade, an unsafe one. Version 0 says whether to allow downgrades: a lower
level is refused in any case."""
RESULTS_UNTIL: Final = 1
"""The last version that answers each feature."""


async def handle(context: RequestContext, request: "UpdateFeaturesRequest") -> Answer:
    """Check the features one after the other, and change none."""
    types = response_types("update_features", context.api_version)
    turns = context.broker.turns
    refusal = cluster_refusal(context, Operation.ALTER) or await _refusal(context, request)
    fields = {}
    if context.api_version <= RESULTS_UNTIL:
        done = ArrayWriter(types.UpdatableFeatureResult)
        async for update in turns.each(() if refusal else request.feature_updates):
            done.add(feature=update.feature, error_code=ErrorCode.NONE, error_message=None)
        fields["results"] = done.encoded()
    outcome = refusal or Outcome()
    return build(
        types.UpdateFeaturesResponse,
        error_code=outcome.error,
        error_message=outcome.message,
        **fields,
    )


async def _refusal(context: RequestContext, request: "UpdateFeaturesRequest") -> Outcome | None:
    """Return why the first feature that can't be updated can't be; None: all can."""
    finalized = finalized_features(context.broker.view.feature_level)
    async for update in context.broker.turns.each(request.feature_updates):
        kind = UPGRADE if context.api_version == 0 else update.upgrade_type
        problem = _problem(update.feature, update.max_version_level, kind, finalized)
        if problem is not None:
            return Outcome(ErrorCode.INVALID_UPDATE_VERSION, problem)
    return None


def _problem(feature: str, level: int, upgrade_type: int, finalized: dict[str, int]) -> str | None:
    """Say why a feature can't be set to a level; None: it is there already."""
    now = finalized.get(feature)
    if now is None:
        return f"feature {feature!r} is unknown: there are {', '.join(finalized)}"
    if upgrade_type not in UPGRADE_TYPES:
        return f"upgrade type {upgrade_type} of feature {feature!r} is none of 1, 2 and 3"
    if level > now:
        return (
            f"feature {feature!r} is at level {now}: a higher level comes on by itself once every "
            "agent knows it"
        )
    if level < now:
        return f"feature {feature!r} is at level {now}, and no level is ever lowered"
    return None
