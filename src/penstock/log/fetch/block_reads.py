"""Reading a block of an object for the block cache."""

from penstock.log.fetch.blocks import Block, BlockCache
from penstock.log.fetch.object_reads import ObjectReads


async def read_block(
    reads: ObjectReads, blocks: BlockCache, key: str, start: int, end: int
) -> Block:
    """Bytes [start, end) of an object.

    Where the object's blocks in the cache are of another version, either is out of date, perhaps
    since it came from a peer: then the store itself is asked, once, and its answer counts.

    Raises:
        PenstockError: what the store raised.
    """
    found = await reads.get_versioned(key, start, end)
    kept = blocks.version_of(key)
    if kept is not None and kept != found.version:
        found = await reads.get_directly(key, start, end)
    return Block(memoryview(found.data), found.version)
