"""The context of TLS that listeners share, which follows its files.

A handshake uses the context that is there when it begins, so that a new certificate holds for the
next connection, and those that are open go on. A change of the files is loaded into a context of
its own: what can't be loaded, as a certificate whose key is not there yet, replaces nothing.
"""

import logging
import ssl
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.model.errors import InvalidRequestError, NotFoundError, PenstockError
from penstock.system.heard import Cause, heard

logger = logging.getLogger(__name__)

_VERSIONS: Final = {"tlsv1.2": ssl.TLSVersion.TLSv1_2, "tlsv1.3": ssl.TLSVersion.TLSv1_3}
_CLIENT_AUTH: Final = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}
_OF_OTHERS: Final = stat.S_IRWXO
FileState = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """The files and rules of a context. `key` empty: the key is in the certificate's file.
    `client_auth`: none, requested or required; `version_min`: tlsv1.2 or tlsv1.3."""

    certificate: Path
    key: Path | None = None
    ca: Path | None = None
    client_auth: str = "none"
    version_min: str = "tlsv1.2"

    @property
    def files(self) -> Sequence[Path]:
        """The files that the context is made of."""
        return [path for path in (self.certificate, self.key, self.ca) if path is not None]


class TlsContexts:
    """Holds the newest context. `look` is for a thread; `current` for the event loop."""

    def __init__(self, settings: TlsSettings) -> None:
        """Load the files.

        Raises:
            NotFoundError: a file is not there.
            InvalidRequestError: a file isn't what it should be, or others may read the key.
        """
        self._settings = settings
        self._seen = self._states()
        self.current = load(settings)
        self.loaded_count = 1

    def look(self) -> None:
        """Load the files again if one of them has changed."""
        try:
            found = self._states()
            if found == self._seen:
                return
            context = load(self._settings)
            # Files that were written meanwhile are loaded by the next look.
            is_whole = found == self._states()
        except PenstockError as error:
            heard(Cause.LOAD_CERTIFICATE, error, logger, "keeping the certificate that is in use")
            return
        self.current = context
        self.loaded_count += 1
        if is_whole:
            self._seen = found
            logger.info("new connections get the certificate of %s", self._settings.certificate)

    def _states(self) -> Sequence[FileState]:
        return [_state(path) for path in self._settings.files]


def load(settings: TlsSettings) -> ssl.SSLContext:
    """Make a context of the files as they are.

    Raises:
        NotFoundError: a file is not there.
        InvalidRequestError: a file isn't what it should be, or others may read the key.
    """
    key = settings.key or settings.certificate
    _refuse_readable(key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[settings.version_min]
    # Renegotiation lets a client make the server work; there is none in TLS 1.3.
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    # A resumed session would keep the identity of a certificate that has been taken back.
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    try:
        context.load_cert_chain(settings.certificate, key, password=_no_password)
    except (OSError, ValueError) as error:
        raise _unusable(settings.certificate, error, f"its key is looked for in {key}") from error
    if settings.ca is not None:
        try:
            context.load_verify_locations(settings.ca)
        except OSError as error:
            raise _unusable(settings.ca, error, "certificates in PEM are expected") from error
        context.verify_mode = _CLIENT_AUTH[settings.client_auth]
    return context


def _no_password() -> bytes:
    raise ValueError("the key is encrypted, which is not supported: store it without a password")


def _refuse_readable(key: Path) -> None:
    if _mode(key) & _OF_OTHERS:
        raise InvalidRequestError(
            "read private key",
            str(key),
            f"every user of this machine may use it: its mode is {_mode(key):03o}",
            f"chmod 600 {key}",
        )


def _mode(path: Path) -> int:
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        raise _missing(path, error) from error


def _state(path: Path) -> FileState:
    try:
        found = path.stat()
    except OSError as error:
        raise _missing(path, error) from error
    return found.st_mtime_ns, found.st_size, found.st_ino


def _missing(path: Path, error: OSError) -> PenstockError:
    return NotFoundError("read", str(path), error.strerror or "it can't be read")


def _unusable(path: Path, error: Exception, hint: str) -> InvalidRequestError:
    detail = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
    return InvalidRequestError("load certificate", str(path), detail or "it isn't PEM", hint)
