"""DescribeDelegationToken 1 to 3: delegation tokens (KIP-48) are off, as in a Kafka without
`delegation.token.secret.key`."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode
from penstock.kafka.long_answer import Answer
from penstock.kafka.wire.encode import Entity
from penstock.kafka.wire.schema import build, response_types

if TYPE_CHECKING:
    from kio.schema.describe_delegation_token.v3.request import DescribeDelegationTokenRequest

ANONYMOUS: Final = "User:ANONYMOUS"
_NO_TIME: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NO_TOKEN: Final = {
    "tokens": (),
    "principal_type": "",
    "principal_name": "",
    "token_requester_principal_type": "",
    "token_requester_principal_name": "",
    "issue_timestamp": _NO_TIME,
    "expiry_timestamp": _NO_TIME,
    "max_timestamp": _NO_TIME,
    "token_id": "",
    "hmac": b"",
}
"""The fields of all four answers."""


async def handle(
    context: RequestContext,
    request: "DescribeDelegationTokenRequest",  # noqa: ARG001 - the same for any owners
) -> Answer:
    """Refuse."""
    types = response_types("describe_delegation_token", context.api_version)
    return refuse_token(context, types.DescribeDelegationTokenResponse)


def refuse_token(context: RequestContext, response_type: type[Entity]) -> Answer:
    """Answer a request about tokens: an unknown client may not ask at all."""
    error = ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
    if context.connection.principal == ANONYMOUS:
        error = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    return build(response_type, error_code=error, **_NO_TOKEN)
