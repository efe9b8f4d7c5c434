"""Places that calls of the HTTP port may name: an administrator's client isn't the server's user.

A backup writes as the server to the path or URL that the call names, and a repair reads there.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Final
from urllib.parse import unquote, urlsplit

from penstock.app.http.callers import DeniedError

_KEYS: Final = {
    "s3": ("AWS_ACCESS_KEY_ID",),
    "gs": (
        "GOOGLE_SERVICE_ACCOUNT",
        "GOOGLE_SERVICE_ACCOUNT_PATH",
        "GOOGLE_SERVICE_ACCOUNT_KEY",
        "GOOGLE_APPLICATION_CREDENTIALS",
    ),
    "az": (
        "AZURE_STORAGE_ACCOUNT_KEY",
        "AZURE_STORAGE_ACCESS_KEY",
        "AZURE_STORAGE_SAS_KEY",
        "AZURE_STORAGE_SAS_TOKEN",
        "AZURE_STORAGE_CLIENT_SECRET",
        "AZURE_CLIENT_SECRET",
    ),
}
"""Variables of credentials that the environment has. Without one, a store's client asks the cloud
for the instance's."""


class Targets:
    """Says which places are allowed.

    Args:
        prefixes: paths and URLs: they and what is below them; empty: see `takes_any`.
        takes_any: whether every place is allowed where there are no prefixes.
        instance_credentials: whether a store may be reached by the instance's credentials.
    """

    def __init__(
        self,
        prefixes: str,
        *,
        takes_any: bool,
        instance_credentials: bool,
        environment: Mapping[str, str] = os.environ,
        real_path: Callable[[str], str] = os.path.realpath,
    ) -> None:
        self._real_path = real_path
        self._prefixes = [self._place(text.strip()) for text in prefixes.split(",") if text.strip()]
        self._takes_any = takes_any
        self._instance_credentials = instance_credentials
        self._environment = environment

    def check(self, operation: str, location: str) -> None:
        """Raises: DeniedError: the place isn't allowed."""
        if not self._prefixes and self._takes_any:
            return
        scheme, place = self._place(location)
        allowed = any(
            scheme == known and place[: len(prefix)] == prefix for known, prefix in self._prefixes
        )
        if not allowed:
            # Not repeated: a URL may hold credentials.
            raise DeniedError(
                operation,
                "place",
                "it isn't below one of backup_targets",
                "name it in backup_targets, in the server's settings",
            )
        names = _KEYS.get(scheme, ())
        has_key = any(self._environment.get(name) for name in names)
        if names and not has_key and not self._instance_credentials:
            raise DeniedError(
                operation,
                "place",
                "the server would reach it by its instance's credentials",
                f"give it {names[0]}, or set backup_instance_credentials = true",
            )

    def _place(self, location: str) -> tuple[str, Sequence[str]]:
        """Return a place as a scheme and the steps that lead there.

        Raises:
            DeniedError: a URL that may be read in more ways than one.
        """
        if "://" not in location:
            return "file", self._steps(location)
        try:
            url = urlsplit(location)
        except ValueError:
            raise _ambiguous() from None
        if url.scheme == "file" and not url.netloc:
            return "file", self._steps(unquote(url.path))
        parts = url.path.split("/")
        if (
            url.query
            or url.fragment
            or url.username is not None
            or "%" in location
            or "\\" in location
            or not location.isascii()
            or not location.isprintable()
            or {".", ".."} & set(parts)
        ):
            raise _ambiguous()
        return url.scheme.lower(), [url.netloc.lower(), *filter(None, parts)]

    def _steps(self, path: str) -> Sequence[str]:
        # As the path is followed, links and dots included.
        return [step for step in self._real_path(path).split("/") if step]


def _ambiguous() -> DeniedError:
    return DeniedError(
        "read place",
        "URL",
        "it has a user, a query, dots or escapes, which may lead elsewhere",
        "write it without",
    )
