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
_REQUEST: Final = re.compile(
    r"Error performing [A-Z]+ (?P<origin>\w+://[^/\s]+)\S* in \S+ - (?P<why>[^\n]*)"
)
_STATUS: Final = re.compile(
    r"Server returned non-2xx status code: (?P<status>\d{3}[^:\n]*):? ?(?P<body>[^\n]*)"
)
_USER: Final = re.compile(r"//[^@]*@")
_MESSAGE: Final = re.compile(r"<Message>([^<]*)</Message>")
_UNSENT: Final = "HTTP error: error sending request"
_BROKEN: Final = "HTTP error: "
_REDIRECTED: Final = "Received redirect"
_BODY_SHOWN_MAX: Final = 200
_METADATA: Final = "http://169.254.169.254"
"""The instance's metadata service, which is asked for credentials where none are set."""
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
    request = _REQUEST.search(text)
    if request is None:
        # The first line: what follows is the Debug text of a Rust value.
        return kind(
            operation, subject, text.partition("\n")[0].strip() or name, _HINTS.get(name, "")
        )
    detail, hint = _in_words(request["origin"], request["why"], text)
    return kind(operation, subject, detail, _HINTS.get(name, hint))


def _in_words(origin: str, why: str, text: str) -> tuple[str, str]:
    """Return why a request failed, and what to do about it: obstore's own text names its classes,
    the request's path, and microseconds."""
    origin = _USER.sub("//", origin)
    if origin == _METADATA:
        return (
            "no credentials are set, and this machine's metadata service gave none",
            "set the store's credentials in the environment, AWS_ACCESS_KEY_ID for example",
        )
    if why.startswith(_UNSENT):
        return f"{origin} can't be reached", "is the endpoint right, and does the store run?"
    if why.startswith(_REDIRECTED):
        return f"{origin} says that the bucket is elsewhere", "set the bucket's region, AWS_REGION"
    status = _STATUS.match(why)
    if status is None:
        return f"{origin}: {why.removeprefix(_BROKEN)}", ""
    code, message = _CODE.search(text), _MESSAGE.search(text)
    said = [found[1] for found in (code, message) if found is not None]
    if not said and status["body"] and not status["body"].startswith("<"):
        said = [status["body"][:_BODY_SHOWN_MAX]]
    return ": ".join([f"{origin} answered {status['status'].strip()}", *said]), ""
