"""RenewDelegationToken 1 to 2: delegation tokens are off; see `describe_delegation_token`."""

from typing import TYPE_CHECKING

from penstock.kafka.context import RequestContext
from penstock.kafka.handlers.describe_delegation_token import refuse_token
from penstock.kafka.long_answer import Answer
from penstock.kafka.wire.schema import response_types

if TYPE_CHECKING:
    from kio.schema.renew_delegation_token.v2.request import RenewDelegationTokenRequest


async def handle(
    context: RequestContext,
    request: "RenewDelegationTokenRequest",  # noqa: ARG001 - the same for any token
) -> Answer:
    """Refuse."""
    types = response_types("renew_delegation_token", context.api_version)
    return refuse_token(context, types.RenewDelegationTokenResponse)
