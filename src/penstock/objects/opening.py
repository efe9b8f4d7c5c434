"""From a path or URL to a store.

| URL | store | credentials, endpoint and region |
| --- | --- | --- |
| a path, `file://` | local directory | |
| `memory://` | this process's memory | |
| `s3://bucket/prefix` | S3 and what speaks its protocol | `AWS_*`, instance or pod identity |
| `gs://bucket/prefix` | Google Cloud Storage | `GOOGLE_*`, instance identity |
| `az://container/prefix` | Azure Blob Storage | `AZURE_STORAGE_*`, instance identity |

`StoreOptions` goes before the environment. Plain HTTP is allowed to loopback only, else by
`AWS_ALLOW_HTTP=true` and its like, since credentials would be readable on the way.
"""

import ipaddress
import os
from concurrent.futures import Executor
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from penstock.model.errors import InvalidRequestError
from penstock.objects.hedged import Hedged
from penstock.objects.local import LocalStore
from penstock.objects.metered import Metered, StoreMeter
from penstock.objects.retrying import Retrying
from penstock.objects.timed import BYTES_PER_S_MIN, Timed
from penstock.ports.clock import Clock
from penstock.ports.objects import ObjectStore
from penstock.ports.random import Random
from penstock.system.files import PosixDevice

if TYPE_CHECKING:
    import obstore.store

_ENDPOINT_VARIABLES: Final = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "gs": ("GOOGLE_BASE_URL",),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}
_ENDPOINT_OPTIONS: Final = {"s3": "endpoint", "gs": "base_url", "az": "endpoint"}
_ALLOW_HTTP_VARIABLES: Final = {
    "s3": "AWS_ALLOW_HTTP",
    "gs": "GOOGLE_ALLOW_HTTP",
    "az": "AZURE_ALLOW_HTTP",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """Options that a location does not say. Empty or None: the environment says.

    Args:
        endpoint: http(s)://HOST[:PORT] of a store that is not the cloud's own.
        region: of the bucket; S3 only.
        path_style: whether the bucket stands in the path or in the host's name; S3 only. The
            path, where nothing says otherwise.
        connect_timeout_s: for a connection.
        request_timeout_s: for one call, without the time that a payload takes (`Timed`).
    """

    endpoint: str = ""
    region: str = ""
    path_style: bool | None = None
    connect_timeout_s: float = 5.0
    request_timeout_s: float = 15.0


_LARGEST_REQUEST_S: Final = (64 << 20) / BYTES_PER_S_MIN
_DEFAULTS: Final = StoreOptions()


def open_store(
    location: str | Path,
    *,
    executor: Executor | None = None,
    options: StoreOptions = _DEFAULTS,
    writer: str = "",
) -> ObjectStore:
    """Open a store; nothing is read or written yet, and nothing is tried twice.

    Args:
        location: a path or URL, as in the table above.
        executor: where a local store's blocking work runs; None is the event loop's default.
        writer: of several processes that share a local store, this one's name. See `LocalStore`.

    Raises:
        InvalidRequestError: a URL that no store understands, or plain HTTP beyond loopback.
    """
    if isinstance(location, Path) or "://" not in location:
        return LocalStore(PosixDevice(Path(location)), executor=executor, writer=writer)
    url = urlsplit(location)
    if url.scheme == "file":
        return LocalStore(PosixDevice(Path(unquote(url.path))), executor=executor, writer=writer)
    # On demand: an embedded server never needs it, and starts sooner and smaller without.
    from penstock.objects.bucket import BucketStore

    return BucketStore(open_bucket(location, options=options))


def open_bucket(location: str, *, options: StoreOptions = _DEFAULTS) -> "obstore.store.ObjectStore":
    """Open obstore's store for a URL other than a local directory's; nothing is tried twice.

    Raises:
        InvalidRequestError: as `open_store`.
    """
    from obstore.exceptions import BaseError
    from obstore.store import MemoryStore, from_url

    url = urlsplit(location)
    if url.scheme == "memory":
        return MemoryStore()
    shown = f"{url.scheme}://{url.hostname or ''}{url.path}"
    try:
        return from_url(
            location,
            # Untyped: which options a store takes depends on the scheme.
            **store_config(url.scheme, options, shown=shown),
        )
    except (BaseError, ValueError):
        # Neither its text nor its chain: they repeat the URL, which may hold credentials.
        raise InvalidRequestError(
            "open object store",
            shown,
            "no object store has such a URL",
            "use a path, or a file://, s3://, gs:// or az:// URL",
        ) from None


def open_reliable_store(
    location: str | Path,
    *,
    clock: Clock,
    random: Random,
    meter: StoreMeter | None = None,
    executor: Executor | None = None,
    options: StoreOptions = _DEFAULTS,
    deadline_s: float = 30.0,
    hedges: bool = True,
    writer: str = "",
) -> ObjectStore:
    """Open a store as a server uses it: each request timed out, measured, and tried again.

    Args:
        deadline_s: from a call's start; no try begins after it.
        hedges: whether what takes unusually long is asked a second time (`Hedged`).
    Raises:
        InvalidRequestError: as `open_store`.
    """
    store = open_store(location, executor=executor, options=options, writer=writer)
    is_local = isinstance(store, LocalStore)
    if not is_local:
        # A local disk has no deadline: what was given up would still be written, and a second
        # try at the same time would only be slower.
        store = Timed(store, seconds=options.request_timeout_s)
    if meter is not None:
        store = Metered(store, clock=clock, meter=meter)
    if is_local:
        return store
    if hedges:
        store = Hedged(store)
    return Retrying(store, clock=clock, random=random, deadline_s=deadline_s)


def store_config(scheme: str, options: StoreOptions, *, shown: str) -> dict[str, Any]:
    """Keyword arguments of obstore's `from_url`."""
    endpoint = options.endpoint or next(
        (os.environ[name] for name in _ENDPOINT_VARIABLES.get(scheme, ()) if os.environ.get(name)),
        "",
    )
    client: dict[str, object] = {
        "connect_timeout": timedelta(seconds=options.connect_timeout_s),
        # After `Timed`'s deadline, which knows how large the payload is: for abandoned requests.
        "timeout": timedelta(seconds=options.request_timeout_s + _LARGEST_REQUEST_S),
    }
    if endpoint.startswith("http://"):
        allowed = os.environ.get(_ALLOW_HTTP_VARIABLES.get(scheme, ""), "").lower() == "true"
        if not allowed and not _is_loopback(urlsplit(endpoint).hostname or ""):
            raise InvalidRequestError(
                "open object store",
                shown,
                "its endpoint is plain HTTP beyond loopback, where keys and data can be read",
                f"use https://, or set {_ALLOW_HTTP_VARIABLES.get(scheme)}=true",
            )
        client["allow_http"] = True
    config: dict[str, Any] = {
        "client_options": client,
        # `Retrying` tries again, under one deadline, with its own eyes on conditional puts: a
        # second try inside would make a lost reply look like someone else's object.
        "retry_config": {"max_retries": 0},
    }
    if endpoint and scheme in _ENDPOINT_OPTIONS:
        config[_ENDPOINT_OPTIONS[scheme]] = endpoint
    if scheme == "s3":
        if options.region:
            config["region"] = options.region
        if options.path_style is not None:
            config["virtual_hosted_style_request"] = not options.path_style
    return config


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
