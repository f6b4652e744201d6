"""Carries wake-ups by PUBLISH and SUBSCRIBE."""

from collections.abc import Callable

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

ANSWER_SECONDS = 2.0
"""How long the server may take to be connected to, and to answer."""
QUIET_SECONDS = 15.0
"""After a silence of this length the server is asked whether it is there."""


class RedisCarrier:
    """One connection a replica subscribes, another publishes. See `app.adapters.signals.Carrier`.

    Pub/sub knows no databases, so the number in the address is part of the channel's name: fleets that
    share a server do not wake one another.
    """

    def __init__(self, url: str) -> None:
        """Prepare; nothing is connected yet.

        Args:
            url: `redis://…` or `rediss://…`, as the settings have checked it.
        """
        self._redis = Redis.from_url(
            url,
            # The older protocol, which every server speaks, and no telling of the library's name: a
            # user who may PING, PUBLISH and SUBSCRIBE is enough, and is never refused anything.
            protocol=2,
            driver_info=None,
            socket_connect_timeout=ANSWER_SECONDS,
            socket_timeout=ANSWER_SECONDS,
            # A connection that was dropped while idle is replaced once, at once; all other patience is
            # the caller's.
            retry=Retry(NoBackoff(), 1),
        )
        number = self._redis.connection_pool.connection_kwargs.get("db", 0)
        self._channel = f"bearings/{number}"

    async def publish(self, payload: str) -> None:
        """Publish on the channel."""
        await self._redis.publish(self._channel, payload)

    async def listen(self, on_payload: Callable[[str], None], on_ready: Callable[[], None]) -> None:
        """Hear until the server is gone, or silent though asked."""
        async with self._redis.pubsub() as subscription:
            await subscription.subscribe(self._channel)
            asked = False
            while True:
                heard = await subscription.get_message(timeout=QUIET_SECONDS)
                if heard is None:
                    if asked:
                        raise TimeoutError("the server is silent")
                    await subscription.ping()
                    asked = True
                    continue
                asked = False
                if heard["type"] == "subscribe":
                    on_ready()
                elif heard["type"] == "message" and isinstance(heard["data"], bytes):
                    on_payload(heard["data"].decode(errors="replace"))

    async def close(self) -> None:
        """Let go of both connections."""
        await self._redis.aclose()
