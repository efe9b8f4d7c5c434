"""Suites of the ports' rules, for tests of adapters that others write.

The server imports nothing of this package; what simulates time, disks, stores and journals for our
own tests is in `tests/support/simulated` (docs/decisions/0027).
"""
