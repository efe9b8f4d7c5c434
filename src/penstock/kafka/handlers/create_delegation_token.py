"""CreateDelegationToken 1 to 3: delegation tokens are off; see `describe_delegation_token`."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from penstock.kafka.context import RequestContext
from penstock.kafka.handlers.describe_delegation_token import refuse_token
from penstock.kafka.long_answer import Answer
from penstock.kafka.wire.schema import build, response_types

if TYPE_CHECKING:
    from kio.schema.create_delegation_token.v3.request import CreateDelegationTokenRequest

NO_TIME: Final = datetime(1970, 1, 1, tzinfo=UTC)


async def handle(
    context: RequestContext,
    request: "CreateDelegationTokenRequest",  # noqa: ARG001 - the same for any token
) -> Answer:
    """Refuse."""
    types = response_types("create_delegation_token", context.api_version)
    return build(
        types.CreateDelegationTokenResponse,
        error_code=refuse_token(context),
        principal_type="",
        principal_name="",
        token_requester_principal_type="",
        token_requester_principal_name="",
        issue_timestamp=NO_TIME,
        expiry_timestamp=NO_TIME,
        max_timestamp=NO_TIME,
        token_id="",
        hmac=b"",
    )
