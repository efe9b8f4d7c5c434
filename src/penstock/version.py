"""The version of Penstock, read by the build as well."""

from typing import Final

VERSION: Final = "0.1.0"
