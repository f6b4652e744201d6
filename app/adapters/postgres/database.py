"""Reaches Postgres: one pool a process, short transactions, and errors that say what to do."""

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, TypeAlias

import asyncpg

from app.core.errors import BearingsError, NotSent, Unavailable

Parameters: TypeAlias = Mapping[str, object]

POOL_WAIT_SECONDS = 5
STATEMENT_SECONDS = 30
STATEMENTS_PREPARED = 100
SERVER_SETTINGS = {
    "application_name": "bearings",
    # Postgres itself ends a transaction that a frozen process left open.
    "idle_in_transaction_session_timeout": "10000",
    "jit": "off",
}


class Row(asyncpg.Record):
    """A row whose columns are read by name; no row leaves this room."""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - what a column holds, its statement says
        """Return a column."""
        try:
            return self[name]
        except KeyError as error:
            raise AttributeError(name) from error


class Transaction:
    """Statements of one transaction, or one statement that is a transaction by itself.

    Values are given by name and always bound: `:name` in a statement is never put in as text.
    """

    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection

    async def all(self, statement: str, parameters: Parameters) -> Sequence[Row]:
        """Run a statement and return its rows."""
        text, names = _positional(statement)
        return await self._connection.fetch(text, *[parameters[name] for name in names])

    async def first(self, statement: str, parameters: Parameters) -> Row | None:
        """Run a statement and return its first row, if it has one."""
        rows = await self.all(statement, parameters)
        return rows[0] if rows else None

    async def one(self, statement: str, parameters: Parameters) -> Row:
        """Run a statement that always has a row, and return it."""
        return (await self.all(statement, parameters))[0]

    async def run(self, statement: str, parameters: Parameters) -> int:
        """Run a statement and return how many rows it changed."""
        text, names = _positional(statement)
        status = await self._connection.execute(text, *[parameters[name] for name in names])
        count = status.rpartition(" ")[2]
        return int(count) if count.isdecimal() else 0


class Database:
    """A pool of connections.

    Every transaction is opened and closed within one call; none is open while a model or a client is
    waited for, and nothing of a connection's state is used.
    """

    def __init__(self, url: str, *, pool_size: int, pooler: bool = False) -> None:
        """Prepare the pool; nothing is connected yet.

        Args:
            url: `postgresql://…`, with or without a driver in its scheme.
            pool_size: Most connections of this process, beside one for wake-ups.
            pooler: A pooler in transaction mode stands before the database: no named statements, no
                settings at connecting, no listening.
        """
        self.url = re.sub(r"^postgres(ql)?(\+\w+)?://", "postgresql://", url)
        self.pooler = pooler
        self._pool_size = pool_size
        self._pool: asyncpg.Pool | None = None
        self._opening = asyncio.Lock()

    @asynccontextmanager
    async def begin(self, *, snapshot: bool = False) -> AsyncGenerator[Transaction, None]:
        """Open a transaction that is committed when the block ends well.

        Args:
            snapshot: All statements see the database as it was at the first; nothing is written.

        Yields:
            The transaction, to be used by this task alone and not kept.

        Raises:
            Unavailable: The database cannot be reached, or no connection is free in time.
        """
        with _trouble_is_unavailable():
            async with self._connection() as connection:
                isolation = "repeatable_read" if snapshot else "read_committed"
                async with connection.transaction(isolation=isolation, readonly=snapshot):
                    yield Transaction(connection)

    async def all(self, statement: str, parameters: Parameters) -> Sequence[Row]:
        """Run one statement as its own transaction and return its rows: one round trip."""
        with _trouble_is_unavailable():
            async with self._connection() as connection:
                return await Transaction(connection).all(statement, parameters)

    async def first(self, statement: str, parameters: Parameters) -> Row | None:
        """Run one statement as its own transaction and return its first row, if it has one."""
        rows = await self.all(statement, parameters)
        return rows[0] if rows else None

    async def one(self, statement: str, parameters: Parameters) -> Row:
        """Run one statement that always has a row as its own transaction, and return the row."""
        return (await self.all(statement, parameters))[0]

    async def run(self, statement: str, parameters: Parameters) -> int:
        """Run one statement as its own transaction and return how many rows it changed."""
        with _trouble_is_unavailable():
            async with self._connection() as connection:
                return await Transaction(connection).run(statement, parameters)

    async def is_reachable(self) -> bool:
        """Tell whether the database answers."""
        try:
            return await self.first("SELECT 1", {}) is not None
        except BearingsError:
            return False

    async def close(self) -> None:
        """Close every connection."""
        if self._pool is not None:
            self._pool.terminate()

    def _connection(self) -> "_Lent":
        return _Lent(self._opened)

    async def _opened(self) -> asyncpg.Pool:
        if self._pool is None:
            async with self._opening:
                if self._pool is None:
                    self._pool = await asyncpg.create_pool(
                        self.url,
                        min_size=0,
                        max_size=self._pool_size,
                        record_class=Row,
                        # The default asks the server to undo what a connection's user may have set,
                        # a round trip each time. Ours set nothing.
                        reset=_leave_as_it_is,
                        timeout=POOL_WAIT_SECONDS,
                        command_timeout=STATEMENT_SECONDS,
                        statement_cache_size=0 if self.pooler else STATEMENTS_PREPARED,
                        server_settings={} if self.pooler else SERVER_SETTINGS,
                    )
        return self._pool


class _Lent:
    """A connection of the pool, for the length of a block."""

    _pool: asyncpg.Pool
    _connection: asyncpg.Connection

    def __init__(self, opened: Callable[[], Awaitable[asyncpg.Pool]]) -> None:
        self._opened = opened

    async def __aenter__(self) -> asyncpg.Connection:
        self._pool = pool = await self._opened()
        # With one at hand nobody waits, and a timer would cost more than the rest.
        patience = {} if pool.get_idle_size() else {"timeout": POOL_WAIT_SECONDS}
        try:
            self._connection = connection = await pool.acquire(**patience)
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError) as error:
            raise NotSent("The database is busy or out of reach.") from error
        return connection

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is not None and issubclass(kind, asyncio.CancelledError):
            # Giving it back would wait for the server to confirm that it stopped, for as long as it
            # does not answer: and whoever is cancelled has no time left.
            self._connection.terminate()
        await self._pool.release(self._connection)


Executor: TypeAlias = Transaction | Database
"""Where a statement can be run: in a transaction, or as one of its own."""


def moment(value: datetime) -> str:
    """Write a column's time as RFC 3339 in UTC, to the millisecond."""
    return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


_statements: dict[str, tuple[str, list[str]]] = {}


def _positional(statement: str) -> tuple[str, list[str]]:
    """Write a statement with the driver's `$1` in place of `:name`; each statement once."""
    known = _statements.get(statement)
    if known is None:
        names: list[str] = []

        def place(found: re.Match[str]) -> str:
            if found[1] not in names:
                names.append(found[1])
            return f"${names.index(found[1]) + 1}"

        text = re.sub(r"(?<!:):([a-z_]+)\b", place, statement)
        known = _statements[statement] = (text, names)
    return known


async def _leave_as_it_is(_connection: asyncpg.Connection) -> None:
    pass


@contextmanager
def _trouble_is_unavailable() -> Generator[None, None, None]:
    """Turn trouble of the database into `Unavailable`; a mistake of ours stays what it is."""
    try:
        yield
    except asyncpg.DataError:
        raise
    except (asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, TimeoutError) as error:
        # The driver calls it internal when a connection ends just as it is used.
        raise Unavailable("The database is busy or out of reach.") from error
    except asyncpg.PostgresError as error:
        # Connection, resources, an object in use, an operator's intervention, a rolled back
        # transaction: a restart, a full disk, a lock, a deadlock.
        if (error.sqlstate or "")[:2] in {"08", "53", "55", "57", "40"}:
            raise Unavailable("The database is busy or out of reach.") from error
        raise
