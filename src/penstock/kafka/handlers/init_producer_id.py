"""InitProducerId 0 to 5: a producer id for idempotent producing and for transactions (KIP-98).

A producer without a transactional id always gets a fresh id with epoch 0, also when it names the
one that it had (KIP-360), as in Kafka. One with a transactional id gets the id's next epoch, and
what is open of it is aborted in the same entry: CONCURRENT_TRANSACTIONS is never the answer.
"""

import logging
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode, error_code
from penstock.kafka.long_answer import Answer
from penstock.kafka.net.unserved import Unserved, note_unserved
from penstock.kafka.transactions import ErrorVersions, serves_transactions, settle
from penstock.kafka.wire.schema import build, response_types
from penstock.model.errors import PenstockError, RetryableError
from penstock.security.acl import Operation
from penstock.state.transaction_commands import InitTransaction
from penstock.system.heard import Cause, heard

if TYPE_CHECKING:
    from kio.schema.init_producer_id.v5.request import InitProducerIdRequest


NO_PRODUCER_ID: Final = -1
NO_EPOCH: Final = -1
VERSIONS: Final = ErrorVersions(fenced=4, abortable=5)

_NO_PRODUCER: Final = (NO_PRODUCER_ID, NO_EPOCH)
_MILLISECOND: Final = timedelta(milliseconds=1)

logger = logging.getLogger(__name__)


async def handle(context: RequestContext, request: "InitProducerIdRequest") -> Answer:
    """Give a producer its id and epoch."""
    refused = _refused(context, request.transactional_id)
    if refused:
        producer, error = _NO_PRODUCER, refused
    elif request.transactional_id is None:
        producer, error = await _idempotent(context)
    elif request.transactional_id == "":
        producer, error = _NO_PRODUCER, ErrorCode.INVALID_REQUEST
    elif serves_transactions(context.broker.view):
        producer, error = await _transactional(context, request, request.transactional_id)
    else:
        # Final at once in every client; at UNSUPPORTED_VERSION librdkafka asks again and again.
        producer, error = _NO_PRODUCER, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        note_unserved(
            context.broker,
            Unserved.TRANSACTIONS,
            "transactions",
            f"a producer id for the transactional id {request.transactional_id!r}",
            client_id=context.client_id,
            client=context.client_host,
        )
    types = response_types("init_producer_id", context.api_version)
    return build(
        types.InitProducerIdResponse,
        error_code=error,
        producer_id=producer[0],
        producer_epoch=producer[1],
    )


def _refused(context: RequestContext, transactional_id: str | None) -> ErrorCode:
    access = context.access
    if transactional_id is not None:
        return access.transaction(Operation.WRITE, transactional_id)
    refused = access.cluster(Operation.IDEMPOTENT_WRITE)
    # Who may write to some topic may do so idempotently (KIP-679).
    return refused and (access.some_topic(Operation.WRITE) and refused)


async def _idempotent(context: RequestContext) -> tuple[tuple[int, int], ErrorCode]:
    try:
        return await context.broker.log.allocate_producer_id(), ErrorCode.NONE
    except RetryableError as failure:
        heard(Cause.PRODUCER_ID, failure, logger, "no producer id can be given out now")
        # What Kafka says while it has no block of ids at hand; every client tries again.
        return _NO_PRODUCER, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    except PenstockError as failure:
        return _NO_PRODUCER, error_code(failure)


async def _transactional(
    context: RequestContext, request: "InitProducerIdRequest", transactional_id: str
) -> tuple[tuple[int, int], ErrorCode]:
    producer_id, epoch = int(request.producer_id), int(request.producer_epoch)
    if (producer_id == NO_PRODUCER_ID) != (epoch == NO_EPOCH):
        return _NO_PRODUCER, ErrorCode.INVALID_REQUEST
    timeout_ms = request.transaction_timeout // _MILLISECOND
    if not 0 < timeout_ms <= context.broker.settings.transaction_timeout_max_ms:
        return _NO_PRODUCER, ErrorCode.INVALID_TRANSACTION_TIMEOUT
    command = InitTransaction(
        transactional_id=transactional_id,
        timeout_ms=timeout_ms,
        producer_id=producer_id,
        epoch=epoch,
    )
    settled = await settle(context, command, VERSIONS)
    if isinstance(settled, ErrorCode):
        return _NO_PRODUCER, settled
    return (settled.producer_id, settled.epoch), ErrorCode.NONE
