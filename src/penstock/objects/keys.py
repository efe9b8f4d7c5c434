"""Checks keys of objects, by rules that are the same for every store. Pure."""

from penstock.model.errors import InvalidRequestError

KEY_BYTES_MAX = 1024
"""S3's limit; the others allow as much or more."""


def check_key(key: str) -> None:
    """Refuse keys that some store would take for something else.

    Raises:
        InvalidRequestError: empty, too long, or with a part that is empty or begins with a dot
            (in a directory such a part leads out of it, or to the store's own files).
    """
    parts = key.split("/")
    if not all(parts) or any(part.startswith(".") for part in parts) or "\0" in key:
        raise InvalidRequestError("name object", repr(key), "a part is empty or begins with a dot")
    if len(key.encode()) > KEY_BYTES_MAX:
        raise InvalidRequestError("name object", repr(key), f"longer than {KEY_BYTES_MAX} bytes")
