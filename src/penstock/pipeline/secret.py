"""A job's process reads its credential where it uses it, and never carries it along: an API key, a
token, or the cluster's secret. All go into the same header.

Options, plans and tasks hold at most the path of a file.
"""

import os
from pathlib import Path
from typing import Final

from penstock.model.errors import InvalidRequestError
from penstock.peers.secret import ClusterSecret

SECRET_VARIABLE: Final = "PENSTOCK_CLUSTER_SECRET"  # noqa: S105 - its name
SECRET_FILE_VARIABLE: Final = "PENSTOCK_CLUSTER_SECRET_FILE"  # noqa: S105 - its name
KEY_VARIABLE: Final = "PENSTOCK_API_KEY"
KEY_FILE_VARIABLE: Final = "PENSTOCK_API_KEY_FILE"
CREDENTIAL_VARIABLES: Final = (
    KEY_FILE_VARIABLE,
    KEY_VARIABLE,
    SECRET_FILE_VARIABLE,
    SECRET_VARIABLE,
)
"""All that may hold a credential or name its file, the first that is set counts."""
FILE_BYTES_MAX: Final = 64 << 10


def find_secret(path: str = "") -> ClusterSecret | None:
    """Return the credential in the file `path`, else what the first of `CREDENTIAL_VARIABLES` holds
    or names that is set; None: there is none, as for a server on loopback.

    Raises:
        InvalidRequestError: the file can't be read, or holds no credential.
    """
    text = ""
    if not path:
        name = next((name for name in CREDENTIAL_VARIABLES if os.environ.get(name)), "")
        if name in {KEY_VARIABLE, SECRET_VARIABLE}:
            text = os.environ[name]
        elif name:
            path = os.environ[name]
        else:
            return None
    if text:
        return ClusterSecret(text)
    try:
        with Path(path).open("rb") as file:
            raw = file.read(FILE_BYTES_MAX)
    except OSError as error:
        raise InvalidRequestError(
            "read secret", path, error.strerror or "it can't be read"
        ) from error
    # A second line is a secret that servers take, too, while it is being changed.
    return ClusterSecret((raw.decode("latin-1").strip().splitlines() or [""])[0])


def only_secret(secret: ClusterSecret) -> dict[str, str]:
    """Return the variables of a child process that has this credential and no other."""
    return {**dict.fromkeys(CREDENTIAL_VARIABLES, ""), SECRET_VARIABLE: secret.text}
