"""CreateDelegationToken 1 to 3: delegation tokens are off; see `describe_delegation_token`."""

from typing import TYPE_CHECKING

from penstock.kafka.context import RequestContext
from penstock.kafka.handlers.describe_delegation_token import refuse_token
from penstock.kafka.long_answer import Answer
from penstock.kafka.wire.schema import response_types

if TYPE_CHECKING:
    from kio.schema.create_delegation_token.v3.request import CreateDelegationTokenRequest


async def handle(
    context: RequestContext,
    request: "CreateDelegationTokenRequest",  # noqa: ARG001 - the same for any token
) -> Answer:
    """Refuse."""
    types = response_types("create_delegation_token", context.api_version)
    return refuse_token(context, types.CreateDelegationTokenResponse)
