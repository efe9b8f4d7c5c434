"""Calls between the agents of one cluster, for blocks of objects and runs of WALs.

docs/formats/peers.md is the protocol. The serving side of HTTP is `penstock.app.http.peer_routes`.
"""

from penstock.peers.blocks import OwnBlocks
from penstock.peers.client import PeerClient
from penstock.peers.codec import BlockRange
from penstock.peers.secret import ClusterSecret
from penstock.peers.wal import PeerWal
from penstock.peers.zone import PeerAgent, ZoneStore

__all__ = [
    "BlockRange",
    "ClusterSecret",
    "OwnBlocks",
    "PeerAgent",
    "PeerClient",
    "PeerWal",
    "ZoneStore",
]
