"""The cluster's secret in a file, which is looked at every second: so it changes without a stop."""

import logging
import os
from pathlib import Path

from penstock.model.errors import InvalidRequestError, PenstockError
from penstock.peers.secret import ClusterSecret, RotatingSecret
from penstock.system.heard import Cause, heard

logger = logging.getLogger(__name__)


class SecretFile:
    """Keeps a `RotatingSecret` as its file is. `look` is for a thread.

    Raises:
        InvalidRequestError: the file can't be read, or doesn't hold one secret or two.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = self._read()
        self.secret = RotatingSecret(self._seen)

    def look(self) -> None:
        """Take what the file has now."""
        try:
            found = self._read()
            if found == self._seen:
                return
            self.secret.replace(found)
        except PenstockError as error:
            heard(Cause.LOAD_SECRET, error, logger, "keeping the secrets that are in use")
            return
        self._seen = found
        logger.info("%d secrets of %s are taken now", len(found), self._path)

    def _read(self) -> list[str]:
        try:
            return RotatingSecret.lines(self._path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            detail = getattr(error, "strerror", None) or "it isn't text"
            raise InvalidRequestError("read secret", os.fspath(self._path), detail) from error


def cluster_secret(file: SecretFile | None, text: str) -> ClusterSecret | None:
    """Return the cluster's secret; None: there is none.

    Args:
        text: the setting, where no file has it.
    """
    if file is not None:
        return file.secret
    return ClusterSecret(text) if text else None
