"""The scenarios: traffic under one nemesis each, and what has to hold afterwards."""

import asyncio
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles

from app.adapters.postgres.database import Database
from tests.faults import nemesis
from tests.faults.checker import BEYOND_TTL_SECONDS, Found, check, until_idle
from tests.faults.generator import LOAD, Generator, Load
from tests.faults.nemesis import Nemesis
from tests.faults.postgres import Postgres
from tests.faults.world import TTL_SECONDS, World, world


@dataclass(frozen=True)
class Scenario:
    """A nemesis and how much of it, in the short and in the long form."""

    name: str
    nemesis: Nemesis
    short: tuple[int, int]
    """Faults and messages, at least."""
    long: tuple[int, int]
    replicas: int = 3
    relayed: bool = False
    ttl: float = TTL_SECONDS
    environment: dict[str, str] = field(default_factory=dict)
    load: Load = LOAD
    takeover: float = 0.0
    """Seconds within which another replica goes on, for 99 of 100 replies."""
    fenced: int = 0
    """Writers that the fence must have stopped, in the long form."""


ENOUGH_TAKEOVERS = 50
STANDING_CLOCK = {"FAULTS_CLOCK": "stands"}
SCENARIOS = {
    each.name: each
    for each in (
        Scenario("kill", nemesis.kill, (6, 60), (200, 5_000), takeover=TTL_SECONDS + 5),
        Scenario("terminate", nemesis.terminate, (3, 30), (40, 500), takeover=3),
        Scenario("hold", nemesis.hold, (4, 30), (100, 500)),
        Scenario(
            "hold-clock", nemesis.hold, (4, 30), (200, 1_000), environment=STANDING_CLOCK, fenced=20
        ),
        Scenario("cut", nemesis.cut, (40, 60), (500, 1_000)),
        Scenario("restart", nemesis.restart_postgres, (2, 20), (20, 300)),
        Scenario("lose", nemesis.lose, (25, 60), (500, 2_000), relayed=True),
        Scenario("delay", nemesis.delay, (2, 20), (20, 300), relayed=True, ttl=3),
        Scenario("deafen", nemesis.deafen, (1, 20), (12, 300), relayed=True),
        Scenario(
            "points", nemesis.fail_at_points, (1, 30), (5, 500), replicas=2, load=Load(slots=2)
        ),
        Scenario("everything", nemesis.everything, (30, 60), (600, 2_000), relayed=True),
    )
}


@dataclass
class Outcome:
    """What a run came to."""

    scenario: str
    seed: int
    found: Found
    faults: int
    messages: int
    seconds: float

    @property
    def violations(self) -> list[str]:
        return self.found.violations


async def run(
    scenario: Scenario,
    postgres: Postgres,
    *,
    seed: int,
    faults: int,
    messages: int,
    control: str = "",
    keep: Path | None = None,
) -> Outcome:
    """Run traffic and nemesis until there was enough of both, let everything settle, and check.

    Args:
        scenario: What is done.
        postgres: Where.
        seed: Of all chance.
        faults: How many faults there are.
        messages: How many messages are accepted, at least.
        control: A mistake of `tests.faults.controls` to make.
        keep: Where the replicas' logs are kept when something was wrong.
    """
    begun = time.monotonic()
    environment = scenario.environment | ({"FAULTS_CONTROL": control} if control else {})
    async with world(
        postgres,
        seed=seed,
        replicas=scenario.replicas,
        ttl=scenario.ttl,
        relayed=scenario.relayed,
        load=scenario.load,
        **environment,
    ) as made:
        generator = made.generator
        traffic = asyncio.create_task(generator.run())
        try:
            breaking = asyncio.create_task(scenario.nemesis(made.scene, faults))
            await _enough(made, generator, traffic, breaking, messages)
            await settle(made, scenario.ttl)
            found = await check(
                made.database,
                made.history,
                ttl=scenario.ttl,
                readers=generator.readers,
                folder=made.folder,
                urls=made.urls,
            )
        finally:
            traffic.cancel()
            await asyncio.gather(traffic, return_exceptions=True)
            for reader in generator.readers:
                await reader.stop()
        found.violations += [f"{each} (seed {seed})" for each in made.model.violations]
        found.counts["reconnects"] = sum(reader.reconnects for reader in generator.readers)
        found.counts["model calls"] = made.model.counts["requests"]
        found.violations += late(scenario, found)
        found.excuse()
        if keep is not None and (found.violations or found.known):
            kept = keep / f"{scenario.name}-{seed}"
            shutil.copytree(made.folder, kept, dirs_exist_ok=True)
            await _dump(made.database, kept)
        return Outcome(
            scenario.name,
            seed,
            found,
            len(made.history.faults),
            made.history.accepted,
            time.monotonic() - begun,
        )


async def _dump(database: Database, folder: Path) -> None:
    """Write down what the database says of sessions that are not at rest."""
    for table in ("sessions", "replies", "pending_calls", "inputs"):
        rows = await database.all(
            f"SELECT row_to_json(t)::text AS row FROM {table} t, sessions s "
            "WHERE s.id = t.session_id AND (s.queued > 0 OR s.reply_id IS NOT NULL)"
            if table != "sessions"
            else "SELECT row_to_json(t)::text AS row FROM sessions t WHERE queued > 0 OR reply_id "
            "IS NOT NULL",
            {},
        )
        (folder / f"{table}.json").write_text("\n".join(row.row for row in rows))


async def _enough(
    made: World,
    generator: Generator,
    traffic: asyncio.Task[None],
    breaking: asyncio.Task[None],
    messages: int,
) -> None:
    """See both tasks through, and let the traffic go on until there were messages enough."""
    try:
        while not breaking.done() or made.history.accepted < messages:
            if traffic.done() or (breaking.done() and breaking.exception()):
                break
            await asyncio.sleep(0.1)
        if traffic.done():
            await traffic
        await breaking
    finally:
        breaking.cancel()
        await asyncio.gather(breaking, return_exceptions=True)
    generator.stop()
    await asyncio.wait({traffic}, timeout=2 * (made.scene.ttl + BEYOND_TTL_SECONDS))
    if traffic.done():
        await traffic
    else:
        made.history.violation("3: clients wait in vain")


async def settle(made: World, ttl: float) -> None:
    """Wait until everything is answered; what is not then is the checker's to say."""
    if not await until_idle(made.database, seconds=2 * (ttl + BEYOND_TTL_SECONDS)):
        made.history.violation("3: sessions did not get idle")


def late(scenario: Scenario, found: Found) -> list[str]:
    """Say whether other replicas went on in time; of a few replies the slowest is no p99."""
    times = [each for kind in found.takeovers.values() for each in kind]
    if not scenario.takeover or len(times) < ENOUGH_TAKEOVERS or p99(times) <= scenario.takeover:
        return []
    return [f"others went on after {p99(times):.1f} s at p99, not {scenario.takeover:g} s"]


def p99(values: list[float]) -> float:
    return quantiles(values, n=100, method="inclusive")[98] if len(values) > 1 else sum(values)
