from collections.abc import Mapping
from typing import Self

from redis.asyncio.retry import Retry

class ConnectionPool:
    connection_kwargs: Mapping[str, object]

class Redis:
    connection_pool: ConnectionPool
    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        protocol: int,
        driver_info: None,
        socket_connect_timeout: float,
        socket_timeout: float,
        retry: Retry,
    ) -> Redis: ...
    async def publish(self, channel: str, message: str) -> int: ...
    def pubsub(self) -> PubSub: ...
    async def aclose(self) -> None: ...

class PubSub:
    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, *error: object) -> None: ...
    async def subscribe(self, channel: str) -> None: ...
    async def get_message(self, *, timeout: float) -> Mapping[str, object] | None: ...
    async def ping(self) -> None: ...
