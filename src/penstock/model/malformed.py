"""Errors that msgspec's decoders raise for malformed bytes."""

from typing import Final

import msgspec

MALFORMED: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Text that is not UTF-8 and values that are nested too deeply are Python's own errors. A caller
that catches msgspec's alone takes damage and strangers' bytes for bugs of this program."""
