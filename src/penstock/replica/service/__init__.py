"""A user's state machine as a replicated service; `penstock.replica` has its names, docs/replica.md
its use."""
