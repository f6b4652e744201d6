"""Runs migrations: one at a time in the whole fleet, each in a transaction."""

import asyncio
import os

from alembic import context
from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from app.adapters.postgres.tables import metadata

LOCK = 0x62656172  # "bear"
# Behind a pooler the connection to the server outlives this one, and with it every prepared statement
# that has a name: the next replica would find its own names taken.
UNPREPARED = {
    "statement_cache_size": 0,
    "prepared_statement_cache_size": 0,
    "prepared_statement_name_func": str,
}


def _url() -> str:
    url = context.config.attributes.get("url") or os.environ["BEARINGS_DATABASE_URL"]
    scheme, _, rest = url.partition("://")
    return f"postgresql+asyncpg://{rest}" if scheme.startswith("postgres") else url


def _run(connection: Connection) -> None:
    context.configure(connection=connection, target_metadata=metadata, compare_server_default=False)
    with context.begin_transaction():
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": LOCK})
        context.run_migrations()


async def _online() -> None:
    engine = create_async_engine(_url(), poolclass=NullPool, connect_args=UNPREPARED)
    async with engine.connect() as connection:
        await connection.run_sync(_run)
    await engine.dispose()


if context.is_offline_mode():
    context.configure(url=_url(), target_metadata=metadata, literal_binds=True)
    with context.begin_transaction():
        context.run_migrations()
else:
    asyncio.run(_online())
