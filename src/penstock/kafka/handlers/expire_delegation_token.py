"""ExpireDelegationToken 1 to 2: delegation tokens are off; see `describe_delegation_token`."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from penstock.kafka.context import RequestContext
from penstock.kafka.handlers.describe_delegation_token import refuse_token
from penstock.kafka.long_answer import Answer
from penstock.kafka.wire.schema import build, response_types

if TYPE_CHECKING:
    from kio.schema.expire_delegation_token.v2.request import ExpireDelegationTokenRequest

NO_TIME: Final = datetime(1970, 1, 1, tzinfo=UTC)


async def handle(
    context: RequestContext,
    request: "ExpireDelegationTokenRequest",  # noqa: ARG001 - the same for any token
) -> Answer:
    """Refuse."""
    types = response_types("expire_delegation_token", context.api_version)
    error = refuse_token(context)
    return build(types.ExpireDelegationTokenResponse, error_code=error, expiry_timestamp=NO_TIME)
