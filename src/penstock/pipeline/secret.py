"""A job's process reads the cluster's secret where it uses it, and never carries it along.

Options, plans and tasks hold at most the path of a file.
"""

import os
from pathlib import Path
from typing import Final

from penstock.model.errors import InvalidRequestError
from penstock.peers.secret import ClusterSecret

SECRET_VARIABLE: Final = "PENSTOCK_CLUSTER_SECRET"  # noqa: S105 - its name
SECRET_FILE_VARIABLE: Final = "PENSTOCK_CLUSTER_SECRET_FILE"  # noqa: S105 - its name
FILE_BYTES_MAX: Final = 4096


def find_secret(path: str = "") -> ClusterSecret | None:
    """The secret in the file `path`, else in the file that the environment names, else in the
    environment; None: there is none, as for a server on loopback.

    Raises:
        InvalidRequestError: the file can't be read, or holds no secret.
    """
    path = path or os.environ.get(SECRET_FILE_VARIABLE, "")
    if not path:
        text = os.environ.get(SECRET_VARIABLE, "")
        return ClusterSecret(text) if text else None
    try:
        with Path(path).open("rb") as file:
            raw = file.read(FILE_BYTES_MAX)
    except OSError as error:
        raise InvalidRequestError(
            "read secret", path, error.strerror or "it can't be read"
        ) from error
    return ClusterSecret(raw.decode("latin-1"))
