"""EndTxn 0 to 5: commit or abort a transaction, for all its partitions and group offsets at once.

From version 5 on (protocol V2, KIP-890) each end gives the producer its next epoch.
"""

from typing import TYPE_CHECKING, Final

from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode
from penstock.kafka.long_answer import Answer
from penstock.kafka.transactions import ErrorVersions, seen_position, settle
from penstock.kafka.wire.schema import build, response_types
from penstock.security.acl import Operation
from penstock.state.transaction_commands import EndTransaction

if TYPE_CHECKING:
    from kio.schema.end_txn.v5.request import EndTxnRequest

RAISES_EPOCHS_FROM: Final = 5
VERSIONS: Final = ErrorVersions(fenced=2, abortable=4)


async def handle(context: RequestContext, request: "EndTxnRequest") -> Answer:
    """End a transaction; answered once its end is durable."""
    raises_epochs = context.api_version >= RAISES_EPOCHS_FROM
    command = EndTransaction(
        transactional_id=request.transactional_id,
        producer_id=request.producer_id,
        epoch=request.producer_epoch,
        commits=request.committed,
        bumps=raises_epochs,
        seen_position=seen_position(context, raises_epochs=raises_epochs),
    )
    settled = context.access.transaction(Operation.WRITE, request.transactional_id) or await settle(
        context, command, VERSIONS
    )
    types = response_types("end_txn", context.api_version)
    if isinstance(settled, ErrorCode):
        return build(types.EndTxnResponse, error_code=settled, producer_id=-1, producer_epoch=-1)
    return build(
        types.EndTxnResponse,
        error_code=ErrorCode.NONE,
        producer_id=settled.producer_id,
        producer_epoch=settled.epoch,
    )
