"""Asks alembic whether the migrations make exactly the tables that the code declares."""

import asyncio
import tempfile
from pathlib import Path

from alembic import command
from alembic.config import Config

from app.adapters.postgres.embedded import EmbeddedPostgres
from app.adapters.postgres.migrating import MIGRATIONS


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        postgres = EmbeddedPostgres(Path(folder))
        config = Config()
        config.set_main_option("script_location", str(MIGRATIONS))
        config.attributes["url"] = asyncio.run(postgres.start())
        try:
            command.upgrade(config, "head")
            command.check(config)
        finally:
            asyncio.run(postgres.stop())


if __name__ == "__main__":
    main()
