"""A real PgBouncer in transaction mode before a test's database."""

import asyncio
import os
import pwd
import shutil
import socket
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

PROGRAM = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")

CONFIG = """
[databases]
{name} = host={socket} user=postgres pool_size={pool_size}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
max_client_conn = 500
"""


def _written(config: Path, url: str, port: int, pool_size: int) -> list[str]:
    """Write the configuration and return the command that runs on it."""
    parts = urlsplit(url)
    folder = parse_qs(parts.query)["host"][0]
    name = parts.path.removeprefix("/")
    config.write_text(CONFIG.format(name=name, socket=folder, pool_size=pool_size, port=port))
    # It refuses to be root, and only the database's own user may enter the folder of its socket.
    config.parent.chmod(0o755)
    user = pwd.getpwuid(Path(folder).stat().st_uid).pw_name
    return ["-q", *(["-u", user] if os.geteuid() == 0 else []), str(config)]


@asynccontextmanager
async def pgbouncer(url: str, *, pool_size: int) -> AsyncGenerator[str, None]:
    """Stand before an embedded database; skip the test where there is no PgBouncer.

    Args:
        url: The database's address, with the folder of its socket.
        pool_size: Connections to the database, for all clients together.

    Yields:
        The pooler's address of the same database.
    """
    if PROGRAM is None:
        pytest.skip("there is no pgbouncer on this machine")
    with tempfile.TemporaryDirectory() as folder, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        command = await asyncio.to_thread(
            _written, Path(folder) / "pgbouncer.ini", url, port, pool_size
        )
        free.close()
        child = await asyncio.create_subprocess_exec(
            PROGRAM,
            *command,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            while True:
                assert child.returncode is None, "pgbouncer ended"
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                except ConnectionRefusedError:
                    await asyncio.sleep(0.01)
                else:
                    writer.close()
                    break
            yield f"postgresql://postgres@127.0.0.1:{port}{urlsplit(url).path}"
        finally:
            if child.returncode is None:
                child.kill()
            await child.wait()
