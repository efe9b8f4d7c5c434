"""DescribeUserScramCredentials 0 (KIP-554): users' mechanisms and iteration counts, no secret."""

from typing import TYPE_CHECKING, Final

from penstock.kafka.access import refusal_text
from penstock.kafka.answer_bounds import BASE_BYTES, TEXT_BYTES, text_bytes
from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode
from penstock.kafka.long_answer import Answer
from penstock.kafka.wire.arrays import ArrayWriter
from penstock.kafka.wire.schema import build, response_types
from penstock.security.acl import Operation

if TYPE_CHECKING:
    from kio.schema.describe_user_scram_credentials.v0.request import (
        DescribeUserScramCredentialsRequest,
    )

RESULT_BYTES: Final = 32
"""A user's result without its name: two mechanisms at most."""


async def handle(context: RequestContext, request: "DescribeUserScramCredentialsRequest") -> Answer:
    """Describe the named users, or all."""
    types = response_types("describe_user_scram_credentials", context.api_version)
    refused = context.access.cluster(Operation.DESCRIBE)
    if refused:
        return build(
            types.DescribeUserScramCredentialsResponse,
            error_code=refused,
            error_message=refusal_text(refused),
            results=(),
        )
    known = context.broker.view.credentials
    asked = [user.name for user in request.users] if request.users else sorted(known)
    counts: dict[str, int] = {}
    bound = BASE_BYTES
    async for name in context.broker.turns.each(asked):
        counts[name] = counts.get(name, 0) + 1
        bound += RESULT_BYTES + 2 * text_bytes(name) + (0 if name in known else TEXT_BYTES)
    waiting = context.reserve_answer(bound)
    if waiting is not None:
        return waiting
    results = ArrayWriter(types.DescribeUserScramCredentialsResult)
    async for name, count in context.broker.turns.each(counts.items()):
        error, message = ErrorCode.NONE, ""
        own = known.get(name, {})
        if count > 1:
            error, own = ErrorCode.DUPLICATE_RESOURCE, {}
            message = (
                "Cannot describe SCRAM credentials for the same user twice in a single request: "
                f"{name}"
            )
        elif not own:
            error = ErrorCode.RESOURCE_NOT_FOUND
            message = f"Attempt to describe a user credential that does not exist: {name}"
        results.add(
            user=name,
            error_code=error,
            error_message=message,
            credential_infos=tuple(
                build(
                    types.CredentialInfo,
                    mechanism=int(mechanism),
                    iterations=own[mechanism].iterations,
                )
                for mechanism in sorted(own)
            ),
        )
    return build(
        types.DescribeUserScramCredentialsResponse,
        error_code=ErrorCode.NONE,
        error_message="",
        results=results.encoded(),
    )
