"""When the database is migrated, and by whom."""

import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory

from app.adapters.postgres import migrating
from app.adapters.postgres.database import Database


def test_the_newest_file_is_what_alembic_takes_for_the_head() -> None:
    config = Config()
    config.set_main_option("script_location", str(migrating.MIGRATIONS))

    assert migrating.newest() == ScriptDirectory.from_config(config).get_current_head()


async def test_a_database_that_lacks_nothing_is_left_alone(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(migrating, "_upgrade", asked.append)
    await migrating.migrate(database)

    assert asked == []


async def test_a_database_of_a_newer_release_is_left_alone(
    own_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(migrating, "_upgrade", asked.append)
    await own_database.run("UPDATE alembic_version SET version_num = '9999'", {})
    await migrating.migrate(own_database)

    assert asked == []


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM alembic_version",
        "DROP TABLE alembic_version",
        "UPDATE alembic_version SET version_num = '0001'",
    ],
)
async def test_a_database_that_lacks_something_is_migrated(
    own_database: Database, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(migrating, "_upgrade", asked.append)
    await own_database.run(statement, {})
    await migrating.migrate(own_database)

    assert asked == [own_database.url]
