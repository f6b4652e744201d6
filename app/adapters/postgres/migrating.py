"""Brings the database's tables to this release's."""

import asyncio
from pathlib import Path

import asyncpg

from app.adapters.postgres.database import Database

MIGRATIONS = Path(__file__).parents[3] / "migrations"


async def migrate(database: Database) -> None:
    """Run the migrations that the database lacks; replicas that start together wait for each other."""
    # One that is ahead is a newer release's, which this one works beside.
    if (await _revision(database) or "") < newest():
        await asyncio.to_thread(_upgrade, database.url)


def newest() -> str:
    """Return this release's revision: the migrations are numbered, in their files' names too."""
    return max(path.name for path in (MIGRATIONS / "versions").glob("*.py")).partition("_")[0]


async def _revision(database: Database) -> str | None:
    try:
        row = await database.first("SELECT version_num FROM alembic_version", {})
    except asyncpg.UndefinedTableError:
        return None
    return None if row is None else row.version_num


def _upgrade(url: str) -> None:
    # Here, because alembic and SQLAlchemy are a fifth of what it takes to start, and nearly every
    # start finds the database as it should be.
    from alembic import command  # noqa: PLC0415
    from alembic.config import Config  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.attributes["url"] = url
    command.upgrade(config, "head")
