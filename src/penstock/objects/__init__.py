"""Object stores: adapters and decorators of the port in `penstock.ports.objects`.

`BucketStore` is in `penstock.objects.bucket` and not named here, since it loads obstore.
"""

from penstock.objects.hedged import Hedged
from penstock.objects.local import LocalStore
from penstock.objects.metered import Metered, StoreMeter
from penstock.objects.opening import StoreOptions, open_reliable_store, open_store
from penstock.objects.retrying import Retrying
from penstock.objects.timed import Timed

__all__ = [
    "Hedged",
    "LocalStore",
    "Metered",
    "Retrying",
    "StoreMeter",
    "StoreOptions",
    "Timed",
    "open_reliable_store",
    "open_store",
]
