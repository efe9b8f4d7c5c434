"""Errors of file systems and of obstore as Penstock's, by table, at the edge."""

import errno
import re
from typing import Final

from penstock.model.errors import (
    ConflictError,
    NotFoundError,
    OverloadedError,
    PenstockError,
    RetryableError,
    StorageFullError,
)

_BY_ERRNO: Final[dict[int, type[PenstockError]]] = {
    errno.ENOENT: NotFoundError,
    errno.ENOTDIR: NotFoundError,
    errno.EISDIR: NotFoundError,
    errno.EEXIST: ConflictError,
    errno.ENOSPC: StorageFullError,
    errno.EDQUOT: StorageFullError,
}

_BY_OBSTORE_NAME: Final[dict[str, type[PenstockError]]] = {
    "NotFoundError": NotFoundError,
    "FileNotFoundError": NotFoundError,
    "AlreadyExistsError": ConflictError,
    "PreconditionError": ConflictError,
}
_BY_S3_CODE: Final[dict[str, type[PenstockError]]] = {
    "SlowDown": OverloadedError,
    "ServiceUnavailable": OverloadedError,
    "ServerBusy": OverloadedError,
    "TooManyRequests": OverloadedError,
    # 409, which obstore takes for "exists": two conditional puts at once, and neither is settled.
    "ConditionalRequestConflict": RetryableError,
    "OperationAborted": RetryableError,
}
_CODE: Final = re.compile(r"<Code>(\w+)</Code>")
_TOO_MANY: Final = re.compile(r"non-2xx status code: (429|503)")
_HINTS: Final = {
    "PermissionDeniedError": "the credentials may not do this",
    "UnauthenticatedError": "the credentials were not accepted",
}


def translate_os_error(operation: str, subject: str, error: OSError) -> PenstockError:
    """Translate an OSError of a file. A failed sync is retriable here: nothing names an object
    whose put failed, and the next try writes all bytes again, to a new file."""
    kind = _BY_ERRNO.get(error.errno or 0, RetryableError)
    return kind(operation, subject, error.strerror or str(error))


def translate_obstore_error(operation: str, subject: str, error: Exception) -> PenstockError:
    """Translate an error of obstore by its class's name, since obstore is loaded on demand."""
    name = type(error).__name__
    text = str(error)
    kind = _BY_OBSTORE_NAME.get(name, RetryableError)
    code = _CODE.search(text)
    if code is not None:
        kind = _BY_S3_CODE.get(code[1], kind)
    elif _TOO_MANY.search(text):
        kind = OverloadedError
    # The first line: what follows is the Debug text of a Rust value.
    detail = text.partition("\n")[0].strip() or name
    if code is not None:
        detail = f"{code[1]}: {detail}"
    return kind(operation, subject, detail, _HINTS.get(name, ""))
