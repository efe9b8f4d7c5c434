"""From a path or URL to a store."""

from concurrent.futures import Executor
from pathlib import Path
from urllib.parse import unquote, urlsplit

from penstock.model.errors import InvalidRequestError
from penstock.objects.local import LocalStore
from penstock.ports.objects import ObjectStore
from penstock.system.files import PosixDevice


def open_store(location: str | Path, *, executor: Executor | None = None) -> ObjectStore:
    """Open a store; nothing is read or written yet.

    Args:
        location: a path, or a file://, memory://, s3://, gs:// or az:// URL; credentials and
            endpoints of buckets come from the environment, under obstore's names.
        executor: where a local store's blocking work runs; None is the event loop's default.

    Raises:
        InvalidRequestError: a URL that no store understands.
    """
    if isinstance(location, Path) or "://" not in location:
        return LocalStore(PosixDevice(Path(location)), executor=executor)
    url = urlsplit(location)
    if url.scheme == "file":
        return LocalStore(PosixDevice(Path(unquote(url.path))), executor=executor)
    # On demand: an embedded server never needs it, and starts sooner and smaller without.
    from obstore.exceptions import BaseError
    from obstore.store import MemoryStore, from_url

    from penstock.objects.bucket import BucketStore

    if url.scheme == "memory":
        return BucketStore(MemoryStore())
    try:
        return BucketStore(from_url(location))
    except (BaseError, ValueError):
        # Neither its text nor its chain: they repeat the URL, which may hold credentials.
        raise InvalidRequestError(
            "open object store",
            f"{url.scheme}://{url.hostname or ''}{url.path}",
            "no object store has such a URL",
            "use a path, or a file://, s3://, gs:// or az:// URL",
        ) from None
