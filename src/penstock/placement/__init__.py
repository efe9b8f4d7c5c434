"""Which of several members has something: rendezvous hashing, zones, leaders. Pure."""
