"""Places things among several members: rendezvous hashing, zones, leaders. Pure."""
