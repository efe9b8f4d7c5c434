"""DescribeDelegationToken 1 to 3: delegation tokens (KIP-48) are off, as in a Kafka without
`delegation.token.secret.key`."""

from typing import TYPE_CHECKING, Final

from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode
from penstock.kafka.long_answer import Answer
from penstock.kafka.wire.schema import build, response_types

if TYPE_CHECKING:
    from kio.schema.describe_delegation_token.v3.request import DescribeDelegationTokenRequest

ANONYMOUS: Final = "User:ANONYMOUS"


async def handle(
    context: RequestContext,
    request: "DescribeDelegationTokenRequest",  # noqa: ARG001 - the same for any owners
) -> Answer:
    """Refuse."""
    types = response_types("describe_delegation_token", context.api_version)
    error = refuse_token(context)
    return build(types.DescribeDelegationTokenResponse, error_code=error, tokens=())


def refuse_token(context: RequestContext) -> ErrorCode:
    """Return the error of each request about tokens: an unknown client may not ask at all."""
    if context.connection.principal == ANONYMOUS:
        return ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    return ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
