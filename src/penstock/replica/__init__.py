"""Replicated SQLite: a state machine in a page of Python becomes a service with many instances.

What is named here is public: docs/replica.md explains it, and versions hold to it. Everything else
in this package is Penstock's own and may change.
"""

from penstock.replica.machine import StateMachine
from penstock.replica.service.blocking import Service
from penstock.replica.service.machine import Entry, Machine, RefusedError
from penstock.replica.service.service import AsyncService
from penstock.replica.service.values import Answer, Settings, Status

__all__ = [
    "Answer",
    "AsyncService",
    "Entry",
    "Machine",
    "RefusedError",
    "Service",
    "Settings",
    "StateMachine",
    "Status",
]
