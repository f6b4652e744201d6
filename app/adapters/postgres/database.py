"""Reaches Postgres: one pool a process, short transactions, and errors that say what to do."""

import re
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from typing import Any, TypeAlias
from uuid import uuid4

import asyncpg
import orjson
from sqlalchemy import Row, TextClause, text
from sqlalchemy.exc import DBAPIError, InterfaceError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from app.core.errors import BearingsError, Unavailable

Parameters: TypeAlias = Mapping[str, object]
AnyRow: TypeAlias = Row[Any]
"""A row as the driver gives it: each repository knows its columns and makes core values of them."""

POOL_WAIT_SECONDS = 5


class Database:
    """A pool of connections.

    Every transaction is opened and closed within one call; none is open while a model or a client is
    waited for. Works through a pooler in transaction mode: nothing of a connection's state is used.
    """

    def __init__(self, url: str, *, pool_size: int) -> None:
        """Prepare the pool; nothing is connected yet.

        Args:
            url: `postgresql://…`, with or without a driver in its scheme.
            pool_size: Most connections of this process, beside one for wake-ups.
        """
        self.url = re.sub(r"^postgres(ql)?(\+\w+)?://", "postgresql+asyncpg://", url)
        self.engine: AsyncEngine = create_async_engine(
            self.url,
            pool_size=pool_size,
            max_overflow=0,
            pool_timeout=POOL_WAIT_SECONDS,
            pool_pre_ping=False,
            pool_reset_on_return=None,
            json_serializer=_dumps,
            json_deserializer=orjson.loads,
            connect_args={
                "timeout": 5,
                "command_timeout": 30,
                "prepared_statement_name_func": lambda: f"__bearings_{uuid4().hex}__",
                "server_settings": {
                    "application_name": "bearings",
                    "idle_in_transaction_session_timeout": "10000",
                    "jit": "off",
                },
            },
        )

        # A single statement is a transaction by itself: one round trip instead of three.
        self._single = self.engine.execution_options(isolation_level="AUTOCOMMIT")

    @asynccontextmanager
    async def begin(self) -> AsyncGenerator[AsyncConnection, None]:
        """Open a transaction that is committed when the block ends well.

        Yields:
            A connection, to be used by this task alone and not kept.

        Raises:
            Unavailable: The database cannot be reached, or no connection is free in time.
        """
        with _trouble_is_unavailable():
            async with self.engine.begin() as connection:
                yield connection

    async def all(self, statement: str, parameters: Parameters) -> Sequence[AnyRow]:
        """Run one statement as its own transaction and return its rows."""
        with _trouble_is_unavailable():
            async with self._single.connect() as connection:
                return (await connection.execute(prepared(statement), parameters)).all()

    async def first(self, statement: str, parameters: Parameters) -> AnyRow | None:
        """Run one statement as its own transaction and return its first row, if it has one."""
        rows = await self.all(statement, parameters)
        return rows[0] if rows else None

    async def run(self, statement: str, parameters: Parameters) -> int:
        """Run one statement as its own transaction and return how many rows it changed."""
        with _trouble_is_unavailable():
            async with self._single.connect() as connection:
                return (await connection.execute(prepared(statement), parameters)).rowcount

    async def is_reachable(self) -> bool:
        """Tell whether the database answers."""
        try:
            return await self.first("SELECT 1", {}) is not None
        except BearingsError:
            return False

    async def close(self) -> None:
        """Close every connection."""
        await self.engine.dispose()


_statements: dict[str, TextClause] = {}


def prepared(statement: str) -> TextClause:
    """Return the clause of a statement, the same object every time, so that its cache works."""
    found = _statements.get(statement)
    if found is None:
        found = _statements[statement] = text(statement)
    return found


def _dumps(value: object) -> str:
    return orjson.dumps(value).decode()


def moment(value: datetime) -> str:
    """Write a column's time as RFC 3339 in UTC, to the millisecond."""
    return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@contextmanager
def _trouble_is_unavailable() -> Generator[None, None, None]:
    """Turn trouble of the database into `Unavailable`; a mistake of ours stays what it is."""
    try:
        yield
    except BearingsError:
        raise
    except (PoolTimeout, InterfaceError, OSError, TimeoutError) as error:
        raise Unavailable("The database is busy or out of reach.") from error
    except asyncpg.PostgresError as error:
        if _is_trouble(error):
            raise Unavailable("The database is busy or out of reach.") from error
        raise
    except DBAPIError as error:
        if error.connection_invalidated or _is_trouble(error.orig):
            raise Unavailable("The database is busy or out of reach.") from error
        raise


def _is_trouble(error: BaseException | None) -> bool:
    """Tell a restart, a full disk, a lock or a deadlock by its class of SQLSTATE."""
    code = str(getattr(error, "sqlstate", None) or "")
    return code[:2] in {"08", "53", "55", "57", "40"}
