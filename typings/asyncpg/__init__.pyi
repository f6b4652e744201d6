# What this project uses of asyncpg, which ships no types.
from collections.abc import Awaitable, Callable

class PostgresError(Exception):
    sqlstate: str | None

class Connection:
    def add_termination_listener(self, callback: Callable[[Connection], None]) -> None: ...
    async def add_listener(
        self, channel: str, callback: Callable[[Connection, int, str, object], None]
    ) -> None: ...
    async def close(self, *, timeout: float | None = ...) -> None: ...

def connect(dsn: str, *, timeout: float = ...) -> Awaitable[Connection]: ...
