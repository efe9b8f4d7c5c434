"""The operating system behind the ports: clock, randomness, files, the data directory's lock."""

from penstock.system.believed_clock import BelievedClock
from penstock.system.clock import SystemClock
from penstock.system.files import PosixDevice
from penstock.system.lock import DirectoryLock
from penstock.system.randomness import SystemRandom

__all__ = ["BelievedClock", "DirectoryLock", "PosixDevice", "SystemClock", "SystemRandom"]
