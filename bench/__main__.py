"""`python -m bench`: measures, prints a table, and keeps the result."""

import argparse
import asyncio
import json
import os
import platform
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import asyncpg

from app.adapters.postgres.embedded import EmbeddedPostgres
from bench.measures import Round, interleaved, one
from bench.targets import Target, resident_mib, running

RESULTS = Path(__file__).parent / "results"
Row = tuple[str, str, float, float, float]
"""What, its unit, and the values of the service, of `proxy` and of `proxy2`."""


def row(what: str, unit: str, taken: dict[str, Round], value) -> Row:
    return (what, unit, *[value(taken[name]) for name in ("bearings", "proxy", "proxy2")])


async def replies_rows(targets: list[Target], scale: float) -> list[Row]:
    rows: list[Row] = []
    for sessions, count in ((1, 300), (16, 960), (64, 960)):
        taken = await interleaved(
            targets, model="text-1", sessions=sessions, count=int(count * scale), rounds=3
        )
        at = f"{sessions} at once"
        rows.append(row(f"reply p50, {at}", "ms", taken, lambda each: each.p(0.5)))
        rows.append(row(f"reply p95, {at}", "ms", taken, lambda each: each.p(0.95)))
        if sessions == 1:
            rows.append(row("first event p50", "ms", taken, lambda each: each.first_event_ms))
            rows.append(row("first token p50", "ms", taken, lambda each: each.first_token_ms))
        rows.append(row(f"service CPU a reply, {at}", "ms", taken, lambda each: each.cpu_ms))
        rows.append(row(f"replies/s, {at}", "1/s", taken, lambda each: each.per_second))
    return rows


async def token_rows(targets: list[Target], scale: float) -> list[Row]:
    rows: list[Row] = []
    for sessions, count in ((1, 12), (16, 48)):
        taken = await interleaved(
            targets,
            model="text-2000",
            sessions=sessions,
            count=max(int(count * scale), 3),
            rounds=3,
        )
        at = f"{sessions} at once"
        rows.append(row(f"tokens/s, {at}", "1/s", taken, lambda each: 2000 * each.per_second))
        rows.append(row(f"events/s, {at}", "1/s", taken, lambda each: each.events / each.wall))
        rows.append(row(f"CPU a token, {at}", "us", taken, lambda each: each.cpu_ms / 2))
    return rows


async def growth_rows(target: Target, scale: float) -> list[Row]:
    """A reply in a session whose context already holds N messages, against an empty one."""
    sizes = (0, 10, 100, 1_000, 5_000)
    addresses = {size: await grown(target, size) for size in sizes}
    taken = {size: Round() for size in sizes}
    for _ in range(max(int(10 * scale), 3)):
        for size, address in addresses.items():
            await one(target, address, taken[size])
    empty = taken[0].p(0.5)
    return [
        (f"reply p50 with {size} messages (ratio to none)", "ms", taken[size].p(0.5), empty, empty)
        for size in sizes[1:]
    ]


async def grown(target: Target, size: int) -> str:
    address = await target.session("text-1")
    state_url = address.removesuffix("/messages") + "/state"
    context = [
        {
            "id": f"m{at}",
            "name": "user" if at % 2 == 0 else "Friday",
            "role": "user" if at % 2 == 0 else "assistant",
            "content": [{"type": "text", "id": f"b{at}", "text": "some words that were said " * 4}],
        }
        for at in range(size)
    ]
    async with target.client.put(state_url, json={"context": context}) as answer:
        assert answer.status == 200, await answer.text()
    await one(target, address, Round())
    return address


async def transaction_row(target: Target, database_url: str) -> Row:
    """Transactions a reply, from the database's own count, less what an idle service makes."""
    connection = await asyncpg.connect(database_url)

    async def count() -> int:
        await connection.execute("SELECT pg_stat_clear_snapshot()")
        return int(await connection.fetchval("SELECT sum(xact_commit) FROM pg_stat_database"))

    address = await target.session("text-1")
    await one(target, address, Round())
    # A backend reports what it did when it is idle, up to ten seconds later.
    await asyncio.sleep(11)
    before = await count()
    await asyncio.sleep(11)
    idle_a_second = (await count() - before) / 11
    loop, replies = asyncio.get_running_loop(), 100
    begun, before = loop.time(), await count()
    for _ in range(replies):
        await one(target, address, Round())
    await asyncio.sleep(11)
    made = (await count() - before - idle_a_second * (loop.time() - begun)) / replies
    await connection.close()
    return ("Postgres transactions a reply (proxy2 makes 3)", "", made, 3, 3)


async def measure(*, short: bool) -> list[Row]:
    scale = 0.2 if short else 1.0
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        postgres = EmbeddedPostgres(Path(folder))
        database_url = await postgres.start()
        try:
            async with running(folder, database_url) as targets:
                proxy, service = targets["proxy"], targets["bearings"]
                starts = (service.start_seconds, proxy.start_seconds, proxy.start_seconds)
                sizes = (resident_mib(service.pid), *[resident_mib(proxy.pid)] * 2)
                rows: list[Row] = [
                    ("start to /readyz, Postgres there", "s", *starts),
                    ("RSS idle", "MiB", *sizes),
                ]
                rows += await replies_rows(list(targets.values()), scale)
                rows += await token_rows(list(targets.values()), scale)
                rows += await growth_rows(service, scale)
                rows.append(await transaction_row(service, database_url))
                return rows
        finally:
            await postgres.stop()


def machine() -> dict[str, str]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    model = named[0] if named else platform.processor()
    return {
        "cpu": model,
        "cores": str(os.cpu_count()),
        "python": platform.python_version(),
        "date": datetime.now(UTC).isoformat(timespec="minutes"),
        "load": " ".join(f"{each:.2f}" for each in os.getloadavg()),
    }


def table(rows: list[Row]) -> str:
    lines = [
        "| what | unit | bearings | proxy | proxy2 | ÷ proxy | ÷ proxy2 |",
        "|---|---|---|---|---|---|---|",
    ]
    for what, unit, ours, bare, kept in rows:
        lines.append(
            f"| {what} | {unit} | {ours:,.2f} | {bare:,.2f} | {kept:,.2f} "
            f"| {ours / bare:.2f} | {ours / kept:.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "--short", action="store_true", help="a fifth of the replies, about a minute"
    )
    given = parser.parse_args()
    on = machine()
    rows = asyncio.run(measure(short=given.short))
    print(
        f"{on['cpu']}, {on['cores']} cores, Python {on['python']}, {on['date']}, load {on['load']}\n"
    )
    print(table(rows))
    RESULTS.mkdir(exist_ok=True)
    names = ("what", "unit", "bearings", "proxy", "proxy2")
    kept = {
        "machine": on,
        "short": given.short,
        "rows": [dict(zip(names, each, strict=True)) for each in rows],
    }
    file = RESULTS / f"{on['date'][:10]}{'-short' if given.short else ''}.json"
    file.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"\nKept in {file.relative_to(Path.cwd())}")


if __name__ == "__main__":
    main()
