"""The nemesis: each of its ways breaks something a number of times, and sees that it is whole again."""

import asyncio
import random
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

from app.adapters.postgres.database import Database
from app.engine.failpoints import EXIT_CODE, FAILPOINTS
from tests.faults.fleet import Replica
from tests.faults.history import Bereaved, History
from tests.faults.postgres import Postgres
from tests.faults.relay import Relay

_HELD = """
SELECT id, reply_id, epoch, extract(epoch FROM clock_timestamp())::float8 AS at FROM sessions
WHERE owner LIKE :owner AND lease_until > clock_timestamp() AND reply_id IS NOT NULL
"""
_BACKENDS = """
SELECT pid FROM pg_stat_activity WHERE application_name = 'bearings' AND datname = current_database()
AND pid <> pg_backend_pid()
"""


@dataclass
class Scene:
    """What there is to break."""

    replicas: list[Replica]
    relays: list[Relay]
    postgres: Postgres
    database: Database
    """The nemesis' own, beside every relay."""
    history: History
    chance: random.Random
    ttl: float
    provoke: Callable[[str, str], Awaitable[None]]
    """Does at one replica what leads past a fail point."""

    async def bereave(self, kind: str, replica: Replica) -> None:
        """Take down which replies have lost their writer just now."""
        for row in await self.database.all(_HELD, {"owner": f"{replica.name}:%"}):
            self.history.bereaved.append(Bereaved(kind, row.id, row.reply_id, row.epoch, row.at))

    async def pause(self, least: float, most: float) -> None:
        await asyncio.sleep(self.chance.uniform(least, most))


POINT_SECONDS = 30
GRACE_SECONDS = 5
"""That replicas have when they are told to stop."""
Nemesis: TypeAlias = Callable[[Scene, int], Awaitable[None]]


async def nothing(scene: Scene, count: int) -> None:
    """Break nothing, for controls whose mistake needs no help."""


async def kill(scene: Scene, count: int) -> None:
    """Kill replicas; two are never away at once for long, so that somebody goes on."""
    for _ in range(count):
        replica = scene.chance.choice(scene.replicas)
        await replica.ready()
        await scene.pause(0.1, 0.8)
        scene.history.fault("kill", replica.name)
        await replica.kill()
        await scene.bereave("kill", replica)
        await replica.start()
    await _whole(scene)


async def terminate(scene: Scene, count: int) -> None:
    """Tell replicas to stop, as a deployment does."""
    for _ in range(count):
        replica = scene.chance.choice(scene.replicas)
        await replica.ready()
        await scene.pause(0.3, 1.0)
        scene.history.fault("terminate", replica.name)
        await scene.bereave("terminate", replica)
        begun = time.monotonic()
        replica.signal(signal.SIGTERM)
        code = await replica.ended
        seconds = time.monotonic() - begun
        if code != 0 or seconds > GRACE_SECONDS + 2:
            scene.history.violation(f"14: {replica.name} ended with {code} after {seconds:.1f} s")
        await replica.start()
    await _whole(scene)


async def fail_at_points(scene: Scene, count: int) -> None:
    """Let one replica die at each fail point, so many times; another goes on."""
    replica = scene.replicas[0]
    await replica.ready()
    await replica.kill()
    for name in FAILPOINTS:
        for _ in range(count):
            passes = 1 if name.startswith("release") else scene.chance.randint(1, 3)
            try:
                async with asyncio.timeout(POINT_SECONDS):
                    await _die_at(scene, replica, name, passes)
                scene.history.fault("point", name)
            except TimeoutError:
                scene.history.violation(f"the fail point {name} was not passed")
                if not replica.ended.done():
                    await replica.kill()
    await replica.start()
    await _whole(scene)


async def _die_at(scene: Scene, replica: Replica, name: str, passes: int) -> None:
    """Let a replica do what leads past a fail point, until it dies there."""
    leaving = name.startswith("release")
    code = 0
    while code != EXIT_CODE:
        await replica.start(BEARINGS_FAILPOINTS=f"{name}=exit@{passes}")
        # It may die before it is ready: the other has work enough for it.
        while not replica.ended.done() and not await replica.answers():
            await asyncio.sleep(0.02)
        while not replica.ended.done():
            await scene.provoke(replica.url, name)
            await asyncio.wait({replica.ended}, timeout=0.3)
            # A replica gives back what it holds when it is told to stop: if it holds something whose
            # step does not end with the reply. What else it does then is no pass of the point.
            if leaving and not replica.ended.done() and await _holds(scene, replica):
                replica.signal(signal.SIGTERM)
                await replica.ended
        code = replica.ended.result()
        if code not in {0, EXIT_CODE}:
            scene.history.violation(f"a replica that was to die at {name} ended with {code}")
            return


async def _holds(scene: Scene, replica: Replica) -> bool:
    return bool(await scene.database.all(_HELD, {"owner": f"{replica.name}:%"}))


async def hold(scene: Scene, count: int) -> None:
    """Hold replicas still for longer than their leases last, one at a time each."""

    async def one(replica: Replica, times: int) -> None:
        for _ in range(times):
            await scene.pause(0.2, 0.8)
            scene.history.fault("hold", replica.name)
            replica.signal(signal.SIGSTOP)
            await scene.pause(scene.ttl * 1.1, scene.ttl * 1.8)
            replica.signal(signal.SIGCONT)
            scene.history.over()

    # The last replica is left alone: somebody has to take over.
    victims = scene.replicas[:-1]
    async with asyncio.TaskGroup() as group:
        for at, replica in enumerate(victims):
            group.create_task(
                one(replica, count * (at + 1) // len(victims) - count * at // len(victims))
            )


async def cut(scene: Scene, count: int) -> None:
    """End connections from the database's side."""
    done = 0
    while done < count:
        rows = await scene.database.all(_BACKENDS, {})
        for row in scene.chance.sample(list(rows), min(len(rows), scene.chance.randint(1, 3))):
            await scene.database.all("SELECT pg_terminate_backend(:pid)", {"pid": row.pid})
            scene.history.fault("cut", str(row.pid))
            done += 1
        await scene.pause(0.05, 0.4)


async def restart_postgres(scene: Scene, count: int) -> None:
    """Let the database fall and rise; each time the service has five seconds to be there again."""
    for _ in range(count):
        await scene.pause(1.0, 2.5)
        scene.history.fault("restart", "postgres")
        await scene.postgres.restart()
        scene.history.over()
        try:
            async with asyncio.timeout(5):
                await _whole(scene)
        except TimeoutError:
            scene.history.violation("no service within 5 s after the database was up")


async def lose(scene: Scene, count: int) -> None:
    """Swallow answers of the database, to commits among others, and reset both sides."""
    for relay in scene.relays:
        relay.lose = 0.004
    seen = 0
    while seen < count:
        await asyncio.sleep(0.05)
        now = sum(relay.lost for relay in scene.relays)
        for _ in range(now - seen):
            scene.history.fault("lose", "answer")
        seen = now
    for relay in scene.relays:
        relay.lose = 0
    scene.history.over()


async def delay(scene: Scene, count: int) -> None:
    """Make the database's answers to one replica two seconds late, for a while."""
    for _ in range(count):
        relay = scene.chance.choice(scene.relays)
        scene.history.fault("delay", str(relay.port))
        relay.delay = 2.0
        await scene.pause(2.0, 6.0)
        relay.delay = 0.0
        # What is on its way still comes late.
        await asyncio.sleep(2.0)
        scene.history.over()
        await scene.pause(0.5, 1.0)


async def deafen(scene: Scene, count: int) -> None:
    """Let one replica's connections to the database lead nowhere for ten seconds, then reset them."""
    for _ in range(count):
        relay = scene.chance.choice(scene.relays)
        scene.history.fault("deafen", str(relay.port))
        relay.deaf = True
        await asyncio.sleep(10)
        relay.deaf = False
        relay.reset()
        scene.history.over()
        await scene.pause(0.5, 1.5)


async def everything(scene: Scene, count: int) -> None:
    """Break this and that at once."""
    ways: list[tuple[Nemesis, float]] = [(kill, 0.2), (cut, 0.6), (lose, 0.2)]
    async with asyncio.TaskGroup() as group:
        for way, share in ways:
            group.create_task(way(scene, max(1, int(count * share))))


async def _whole(scene: Scene) -> None:
    for replica in scene.replicas:
        await replica.ready()
    scene.history.over()
