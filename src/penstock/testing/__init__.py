"""Tools for tests of Penstock, and of adapters that others write for it.

Nothing in the server imports this package.
"""

from penstock.testing.clock import ManualClock
from penstock.testing.device import SimulatedDevice
from penstock.testing.faulty import Faulty
from penstock.testing.randomness import SeededRandom

__all__ = ["Faulty", "ManualClock", "SeededRandom", "SimulatedDevice"]
