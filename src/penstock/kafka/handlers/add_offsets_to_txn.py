"""AddOffsetsToTxn 0 to 4: put a group into a transaction, before its offsets (KIP-98)."""

from typing import TYPE_CHECKING, Final

from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode
from penstock.kafka.long_answer import Answer
from penstock.kafka.transactions import ErrorVersions, seen_position, settle
from penstock.kafka.wire.schema import build, response_types
from penstock.security.acl import Operation
from penstock.state.transaction_commands import AddToTransaction

if TYPE_CHECKING:
    from kio.schema.add_offsets_to_txn.v4.request import AddOffsetsToTxnRequest

VERSIONS: Final = ErrorVersions(fenced=2, abortable=4)


async def handle(context: RequestContext, request: "AddOffsetsToTxnRequest") -> Answer:
    """Add a group; begin a transaction where none is ongoing."""
    types = response_types("add_offsets_to_txn", context.api_version)
    access = context.access
    refused = access.transaction(Operation.WRITE, request.transactional_id) or access.group(
        Operation.READ, request.group_id
    )
    if refused:
        return build(types.AddOffsetsToTxnResponse, error_code=refused)
    command = AddToTransaction(
        transactional_id=request.transactional_id,
        producer_id=request.producer_id,
        epoch=request.producer_epoch,
        partitions=[],
        groups=[request.group_id],
        seen_position=seen_position(context),
    )
    settled = await settle(context, command, VERSIONS)
    error = settled if isinstance(settled, ErrorCode) else ErrorCode.NONE
    return build(types.AddOffsetsToTxnResponse, error_code=error)
