"""Brings the database's tables to this release's."""

import asyncio
from pathlib import Path

from alembic import command
from alembic.config import Config

from app.adapters.postgres.database import Database

MIGRATIONS = Path(__file__).parents[3] / "migrations"


def alembic_config(url: str) -> Config:
    """Return alembic's configuration for a database."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.attributes["url"] = url
    return config


async def migrate(database: Database) -> None:
    """Run the migrations that the database lacks; replicas that start together wait for each other."""
    await asyncio.to_thread(command.upgrade, alembic_config(database.url), "head")
