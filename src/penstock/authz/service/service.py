"""The whole service of one data directory: the directory of environments, each environment, the
API.

```
DIR/lock                      one process at a time
DIR/key                       the first key's text, for its owner alone
DIR/directory.sqlite          environments and keys, with their journal
DIR/environments/NAME.sqlite  an environment's facts and policy, with its journal
DIR/snapshots/NAME/           its last two snapshots
```
"""

import asyncio
import logging
import os
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from penstock.authz.service import decisions
from penstock.authz.service.admin import Admin
from penstock.authz.service.api import Api
from penstock.authz.service.archiving import (
    SHARD_FILE,
    SetArchive,
    WriteSnapshot,
)
from penstock.authz.service.changes import Changes
from penstock.authz.service.decisions import DecisionLog
from penstock.authz.service.directory import ADMIN, Access, Directory
from penstock.authz.service.environment import Environment
from penstock.authz.service.following import SharedDirectoryWriter
from penstock.authz.service.questions import Questions
from penstock.authz.service.shard import Shard, SharedJournal
from penstock.authz.service.watching import Watching
from penstock.model.errors import ConflictError, NotFoundError, PenstockError, RetryableError
from penstock.ports.clock import Clock
from penstock.ports.objects import ObjectStore
from penstock.ports.random import Random
from penstock.replica.database import sync_directory
from penstock.replica.snapshot import write_snapshot
from penstock.replica.snapshot_turns import SnapshotSettings, SnapshotTurns
from penstock.system import background
from penstock.system.files import make_folder
from penstock.system.heard import Cause, heard
from penstock.system.lock import DirectoryLock

logger = logging.getLogger(__name__)

DEFAULT_ENVIRONMENT: Final = "default"
TEST_KEY: Final = "e_0123456789_12345_osotesttoken01xiIn"
"""The key that the vendor documents for local tests; it is accepted where it is asked for."""
KEY_FILE: Final = "key"
OPEN_MAX: Final = 200
FILES_OF_ENVIRONMENT: Final = 12
"""Files that an open environment has open: three of SQLite's for each of its connections."""
_DIRECTORY_FILE: Final = "directory.sqlite"
_WRITERS: Final = 4
_READERS: Final = 2
_INSTANCE_BYTES: Final = 6


class Service:
    """One process's authorization service. Event loop only.

    Args:
        fsync: false gives up the last writes in a power cut.
        open_max: environments that are kept open, those used last; more only while all are in use.
        open_journal: opens the journal that this instance shares with others; None: each database
            has its own.
        snapshots: the store of snapshots of a shared journal; None: none are taken.
        write_snapshot: see `SetArchive`.
        decisions: has the questions and their answers; it is closed here.
    """

    def __init__(
        self,
        data: Path,
        *,
        clock: Clock,
        random: Random,
        fsync: bool = True,
        open_max: int = OPEN_MAX,
        open_journal: Callable[[], Awaitable[SharedJournal]] | None = None,
        snapshots: ObjectStore | None = None,
        snapshot_settings: SnapshotSettings | None = None,
        write_snapshot: WriteSnapshot = write_snapshot,
        decisions: DecisionLog | None = None,
    ) -> None:
        self.data = data
        self._clock = clock
        self._random = random
        self._fsync = fsync
        self._lock: DirectoryLock | None = None
        self._writing = ThreadPoolExecutor(_WRITERS, "authz-write")
        self._reading = ThreadPoolExecutor(_READERS, "authz-read")
        self._watching = ThreadPoolExecutor(1, "authz-watch")
        self.environments: OrderedDict[str, Environment] = OrderedDict()
        """The open ones, that used last at the end."""
        self._open_max = open_max
        self._open_journal = open_journal
        self._snapshots = snapshots
        self._snapshot_settings = snapshot_settings or SnapshotSettings()
        self._write_snapshot = write_snapshot
        self.decisions = decisions
        self.archivist: SnapshotTurns | None = None
        self._archiving: asyncio.Task[None] | None = None
        self.shard: Shard | None = None
        """This instance's end of a shared journal."""
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Has the error after which nothing can be written."""
        self.compared = {True: 0, False: 0}
        """Decisions of clients that were the same as the service's, and that weren't."""

    @property
    def key_file(self) -> Path:
        """The file with the first key."""
        return self.data / KEY_FILE

    async def open(self, *, with_test_key: bool = False) -> None:
        """Open everything, or create it with one environment and one key.

        Args:
            with_test_key: accept TEST_KEY for the default environment, in this process alone.
        Raises:
            ConflictError: another process uses the directory, or it is of the other kind.
            RetryableError: the shared journal doesn't answer.
            PenstockError: a database can't be opened.
        """
        if self._lock is None:
            self._lock = DirectoryLock.acquire(self.data)
        try:
            await self._open(with_test_key=with_test_key)
        except BaseException:
            # It may be tried again, with the same lock.
            await self._close_databases()
            raise

    async def _open(self, *, with_test_key: bool) -> None:
        self._check_kind()
        make_folder(self.data / "environments")
        await self._open_directory()
        if not self.directory.environments:
            await self.directory.create_environment(DEFAULT_ENVIRONMENT)
        if not self.directory.keys:
            # The file comes last: a crash before it leaves a key that its next start replaces.
            text, _, _ = await self.directory.add_key(DEFAULT_ENVIRONMENT, ADMIN, "first key")
            self._write_key(text)
        elif self.shard is None and not self.key_file.exists() and len(self.directory.keys) == 1:
            text, _, _ = await self.directory.add_key(DEFAULT_ENVIRONMENT, ADMIN, "first key again")
            self._write_key(text)
        if with_test_key:
            access = Access("test", DEFAULT_ENVIRONMENT, ADMIN, "test key")
            self.directory.lend(TEST_KEY, access)
        self._open_environment(DEFAULT_ENVIRONMENT)
        if self.shard is not None:
            self.shard.on_long_tail = self._shorten_tail
            for name in self.shard.long_tails():
                self._shorten_tail(name)
            if self._snapshots is not None:
                self.archivist = self._turns(self.shard, self._snapshots)
                self._archiving = background.start(background.SERVICE_SNAPSHOTS, self.archivist.run)
        instance = self._random.token_bytes(_INSTANCE_BYTES).hex()
        self.changes = Changes(self._clock, self._reading)
        questions = Questions(self._clock, instance, self._compare)
        admin = Admin(self.directory, self._open_environment)
        watching = Watching(self._watching)
        self.api = Api(
            self.directory,
            self.environment,
            questions,
            self.changes,
            admin,
            watching,
            self.decisions,
            self._clock,
        )

    def environment(self, name: str) -> Environment:
        """Give an environment, opened if it isn't.

        Raises:
            NotFoundError: the directory doesn't have it.
            PenstockError: its database can't be opened.
        """
        found = self.environments.get(name)
        if found is None:
            if name not in self.directory.environments:
                raise NotFoundError("find", "environment", f"there isn't an environment {name}")
            return self._open_environment(name)
        self.environments.move_to_end(name)
        return found

    async def close(self) -> None:
        """End what is under way, and close the databases; idempotent."""
        await self._close_databases()
        if self.decisions is not None:
            await decisions.close(self.decisions)
        self._writing.shutdown()
        self._reading.shutdown()
        self._watching.shutdown()
        if self._lock is not None:
            self._lock.release()

    async def _close_databases(self) -> None:
        if self._archiving is not None:
            self._archiving.cancel()
            await asyncio.wait([self._archiving])
            self._archiving = self.archivist = None
        for environment in self.environments.values():
            await environment.close()
        self.environments.clear()
        if hasattr(self, "directory"):
            await self.directory.close()
            del self.directory
        if self.shard is not None:
            await self.shard.close()
            self.shard = None

    def _check_kind(self) -> None:
        """Raises: ConflictError: the databases have journals of their own and must not, or the
        other way round."""
        own, shared = self.data / _DIRECTORY_FILE, self.data / SHARD_FILE
        found = own if self._open_journal is not None else shared
        if found.exists():
            detail = (
                "its databases have their own journals"
                if found is own
                else ("its databases follow a shared journal")
            )
            hint = "use another --data" if found is own else "add --journal, or use another --data"
            raise ConflictError("open", str(self.data), detail, hint)

    async def _open_directory(self) -> None:
        if self._open_journal is None:
            self.directory = Directory.open(
                self.data / _DIRECTORY_FILE,
                fsync=self._fsync,
                clock=self._clock,
                random=self._random,
                writing=self._writing,
                failed=self._fail,
            )
            return
        shard = self.shard = await Shard.open(
            self.data,
            self._open_journal,
            clock=self._clock,
            random=self._random,
            executor=self._writing,
            failed=self._fail,
            restore=self._restore,
        )
        self.directory = Directory(
            shard.path, self._random, lambda changed: SharedDirectoryWriter(shard, changed)
        )

    async def _restore(self, journal: SharedJournal) -> None:
        """Make this instance's databases of snapshots, if there are any."""
        if self._snapshots is not None:
            await self._set_archive(self._snapshots, journal).restore(journal)

    def _set_archive(self, store: ObjectStore, journal: SharedJournal) -> SetArchive:
        return SetArchive(
            store,
            cluster_id=journal.cluster_id,
            folder=self.data,
            executor=self._writing,
            write=self._write_snapshot,
        )

    def _turns(self, shard: Shard, store: ObjectStore) -> SnapshotTurns:
        archive = self._set_archive(store, shard.journal)

        async def take() -> int:
            taken = await archive.take(
                shard.journal,
                position=lambda: shard.position,
                use=self._use,
                let_go=self._let_go,
            )
            return taken.shard[0]

        return SnapshotTurns(
            clock=self._clock,
            settings=self._snapshot_settings,
            applied=lambda: shard.position,
            newest=lambda: archive.newest(shard.journal),
            claim=shard.claim,
            take=take,
            cause=Cause.AUTHZ_SNAPSHOTS,
        )

    def _use(self, name: str) -> Environment:
        """Open an environment for a snapshot of it."""
        environment = self.environment(name)
        environment.user_count += 1
        return environment

    def _let_go(self, name: str) -> None:
        self.environments[name].user_count -= 1

    def _shorten_tail(self, name: str) -> None:
        """Have an environment's database apply what is pending of it."""
        try:
            self.environment(name)
        except RetryableError as error:
            heard(Cause.AUTHZ_JOURNAL, error, logger, f"environment {name} is opened later")
        except PenstockError as error:
            self._fail(error)

    def _open_environment(self, name: str) -> Environment:
        if name not in self.environments:
            self.environments[name] = Environment(
                name,
                self.data / "environments" / f"{name}.sqlite",
                snapshots=self.data / "snapshots" / name,
                fsync=self._fsync,
                clock=self._clock,
                random=self._random,
                writing=self._writing,
                reading=self._reading,
                failed=self._fail,
                shard=self.shard,
            )
            self._close_idle()
        return self.environments[name]

    def _close_idle(self) -> None:
        """Close what was used longest ago, but for the newest."""
        for name in list(self.environments)[:-1]:
            if len(self.environments) <= self._open_max:
                return
            if self.environments[name].is_idle:
                self.environments.pop(name).close_idle()

    def _write_key(self, text: str) -> None:
        path = self.key_file
        new = path.with_name(f"{KEY_FILE}.new")
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, f"{text}\n".encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        new.replace(path)
        sync_directory(self.data)

    def _compare(self, is_same: bool) -> None:  # noqa: FBT001 - it is a value here
        self.compared[is_same] += 1

    def _fail(self, error: PenstockError) -> None:
        if not self.failed.done():
            self.failed.set_exception(error)
