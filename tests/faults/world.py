"""Puts a run together: a database, a model, replicas, relays between them, and clients."""

import asyncio
import random
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from app.adapters.postgres.database import Database
from tests.faults.fleet import Replica, free_port, nursery
from tests.faults.generator import LOAD, Generator, Load
from tests.faults.history import History
from tests.faults.http import Client
from tests.faults.model import Model, model_server
from tests.faults.nemesis import GRACE_SECONDS, Scene
from tests.faults.postgres import Postgres
from tests.faults.relay import Relay, relaying

TTL_SECONDS = 2.0


@dataclass
class World:
    """Everything there is in a run."""

    scene: Scene
    model: Model
    client: Client
    generator: Generator
    folder: Path

    @property
    def replicas(self) -> list[Replica]:
        return self.scene.replicas

    @property
    def history(self) -> History:
        return self.scene.history

    @property
    def database(self) -> Database:
        return self.scene.database

    @property
    def urls(self) -> list[str]:
        return [replica.url for replica in self.replicas]


@asynccontextmanager
async def world(
    postgres: Postgres,
    *,
    seed: int,
    replicas: int = 3,
    ttl: float = TTL_SECONDS,
    relayed: bool = False,
    start: bool = True,
    load: Load = LOAD,
    **environment: str,
) -> AsyncIterator[World]:
    """Start everything on a database of its own.

    Args:
        postgres: Where the database is made.
        seed: Of all chance in the run.
        replicas: How many processes.
        ttl: Of leases, in seconds.
        relayed: Whether a relay stands between each replica and the database.
        start: Whether the replicas are started.
        load: The traffic, when there is some.
        **environment: Of the replicas.

    Yields:
        The world; when the block ends nothing of it is left.
    """
    chance = random.Random(seed)
    history = History(seed)
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url = await postgres.database()
        database = Database(url, pool_size=4)
        stack.push_async_callback(database.close)
        model = await stack.enter_async_context(model_server())
        born = await stack.enter_async_context(nursery())
        relays: list[Relay] = []
        fleet: list[Replica] = []
        for at in range(replicas):
            reached = url
            if relayed:
                relays.append(await stack.enter_async_context(relaying(postgres.connect, chance)))
                reached = postgres.through(url, relays[-1].port)
            port = free_port(chance)
            own = {
                "FAULTS_NAME": f"r{at}",
                "FAULTS_FOLDER": str(folder),
                "BEARINGS_DATABASE_URL": reached,
                "BEARINGS_PORT": str(port),
                "BEARINGS_MODEL": "openai:faults",
                "BEARINGS_MODEL_BASE_URL": model.base_url,
                "BEARINGS_LEASE_TTL": str(ttl),
                "BEARINGS_DRAIN_GRACE": str(GRACE_SECONDS),
            }
            fleet.append(Replica(f"r{at}", port, folder / f"r{at}.log", own | environment, born))
        client = Client([replica.url for replica in fleet], history, chance)
        stack.push_async_callback(client.close)
        if start:
            await asyncio.gather(*[replica.start() for replica in fleet])
            await asyncio.gather(*[replica.ready() for replica in fleet])
        generator = Generator(client, history, load)
        scene = Scene(fleet, relays, postgres, database, history, chance, ttl, generator.provoke)
        yield World(scene, model, client, generator, folder)
