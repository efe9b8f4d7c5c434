"""InitProducerId 0 to 5: a producer id for idempotent producing (KIP-98).

A producer without a transactional id always gets a fresh id with epoch 0, also when it names the
one that it had (KIP-360), as in Kafka. Transactional ids are refused until there are transactions.
"""

import logging
from typing import TYPE_CHECKING, Final

from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode, error_code
from penstock.kafka.long_answer import Answer
from penstock.kafka.net.unserved import Unserved, note_unserved
from penstock.kafka.wire.schema import build, response_types
from penstock.model.errors import PenstockError, RetryableError
from penstock.system.heard import Cause, heard

if TYPE_CHECKING:
    from kio.schema.init_producer_id.v5.request import InitProducerIdRequest


NO_PRODUCER_ID: Final = -1

logger = logging.getLogger(__name__)


async def handle(context: RequestContext, request: "InitProducerIdRequest") -> Answer:
    """Allocate a producer id."""
    producer_id, epoch, error = NO_PRODUCER_ID, -1, ErrorCode.NONE
    if request.transactional_id is None:
        try:
            producer_id, epoch = await context.broker.log.allocate_producer_id()
        except RetryableError as failure:
            heard(Cause.PRODUCER_ID, failure, logger, "no producer id can be given out now")
            # What Kafka says while it has no block of ids at hand; every client tries again.
            error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        except PenstockError as failure:
            error = error_code(failure)
    elif request.transactional_id == "":
        error = ErrorCode.INVALID_REQUEST
    else:
        # Final at once in every client; at UNSUPPORTED_VERSION librdkafka asks again and again.
        error = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
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
        producer_id=producer_id,
        producer_epoch=epoch,
    )
