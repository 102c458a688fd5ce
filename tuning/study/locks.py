"""One at a time, across processes and machines: what Optuna's storages leave to their users.

Optuna claims a queued trial atomically, but "are there fewer trials than asked for? then ask" is two steps, and so are
"nobody has measured the cost table yet? then measure it" and the creation of an empty database's tables.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from filelock import FileLock, Timeout
from sqlalchemy import URL, Connection, create_engine, make_url, text
from sqlalchemy.pool import NullPool


def is_in_memory(url: URL) -> bool:
    """Whether this is an SQLite database without a file."""
    return url.get_backend_name() == "sqlite" and url.database in (None, "", ":memory:")


class Lock:
    """Held by one process at a time; freed by the system when its process dies, `kill -9` included.

    PostgreSQL: an advisory lock of a connection of its own, named `name`. SQLite: a lock file beside the database, one
    for all names, or none for a database in memory, which no other process can see.
    """

    def __init__(self, url: str, name: str) -> None:
        self._url = make_url(url)
        self._name = f"adaptive_pyramid {name}"
        self._connection: Connection | None = None
        self._file = None if self._is_server or is_in_memory(self._url) else FileLock(f"{self._url.database}.lock")

    def acquire(self, waiting: Callable[[], None] = lambda: None) -> None:
        """Wait for the lock; `waiting` is called once if another process holds it.

        Raises:
            FileNotFoundError: no directory for the database. SQLAlchemyError, ImportError: the server cannot be asked.
        """
        if self._is_server:
            self._acquire_on_server(waiting)
        elif self._file is not None:
            folder = Path(self._file.lock_file).parent
            if not folder.is_dir():  # FileLock would create it
                raise FileNotFoundError(f"unable to open a database there: there is no directory {str(folder)!r}")
            try:
                self._file.acquire(timeout=0)
            except Timeout:
                waiting()
                self._file.acquire()

    def release(self) -> None:
        """Give it back; nothing happens if it is not held."""
        if self._connection is not None:
            self._connection.close()  # and with the connection goes its lock
            self._connection = None
        if self._file is not None:
            self._file.release()

    def __enter__(self) -> Lock:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    @property
    def _is_server(self) -> bool:
        return self._url.get_backend_name() == "postgresql"

    def _acquire_on_server(self, waiting: Callable[[], None]) -> None:
        # No pool: a connection that is kept would keep the lock. No transaction: it would stay open as long.
        connection = create_engine(self._url, poolclass=NullPool, isolation_level="AUTOCOMMIT").connect()
        try:
            # The server notices within a minute that a machine lost its power; by default it takes two hours.
            for setting, value in (("idle", 30), ("interval", 10), ("count", 3)):
                connection.execute(text(f"SET tcp_keepalives_{setting} = {value}"))
            key = {"name": self._name}
            if not connection.execute(text("SELECT pg_try_advisory_lock(hashtextextended(:name, 0))"), key).scalar():
                waiting()
                connection.execute(text("SELECT pg_advisory_lock(hashtextextended(:name, 0))"), key)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
