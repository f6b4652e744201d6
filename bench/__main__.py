"""`python -m bench`: measures, prints a table, and keeps the result."""

import argparse
import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg
import uvloop

from app.adapters.postgres.embedded import EmbeddedPostgres
from bench.measures import MEASURES, Setting
from bench.processes import free_port, process
from bench.report import Row, finished, grown, headline, keep, machine, newest, table
from bench.targets import Bearings, Proxy, Target


@asynccontextmanager
async def prepared(*, short: bool) -> AsyncGenerator[Setting, None]:
    """Start the database, the model server and all targets; leave nothing of them behind."""
    async with AsyncExitStack() as stack:
        folder = Path(
            stack.enter_context(
                tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True)
            )
        )
        os.environ["PYTHONPYCACHEPREFIX"] = str(folder / "bytecode")
        postgres = EmbeddedPostgres(folder)
        stack.push_async_callback(postgres.stop)
        postgres_url = await postgres.start()
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=120)
        client = await stack.enter_async_context(
            aiohttp.ClientSession(connector=connector, timeout=timeout)
        )
        port = free_port()
        await stack.enter_async_context(process("-m", "bench.model_server", str(port)))
        model_url = f"http://127.0.0.1:{port}/v1"
        alike: Any = {"client": client, "model_url": model_url, "data_dir": str(folder)}
        targets = await _targets(postgres_url, "bench", **alike)
        alone = await _targets(postgres_url, "bench_alone", **alike)
        for target in targets.values():
            await stack.enter_async_context(target.running())
        pid = int((folder / "postgres" / "postmaster.pid").read_text().split("\n", 1)[0])
        yield Setting(
            client=client,
            model_url=model_url,
            folder=folder,
            postgres_url=postgres_url,
            postgres_pid=pid,
            targets=targets,
            alone=alone,
            rounds=3 if short else 5,
            starts=1 if short else 3,
            share=0.2 if short else 1.0,
        )


async def _targets(
    postgres_url: str, prefix: str, *, client: aiohttp.ClientSession, model_url: str, data_dir: str
) -> dict[str, Target]:
    service = Bearings(
        name="bearings",
        client=client,
        model_url=model_url,
        database_url=await _database(postgres_url, f"{prefix}_bearings"),
        data_dir=data_dir,
    )
    proxy = Proxy(name="proxy", client=client, model_url=model_url)
    proxy2 = Proxy(
        name="proxy2",
        client=client,
        model_url=model_url,
        database_url=await _database(postgres_url, f"{prefix}_proxy2"),
    )
    return {target.name: target for target in (service, proxy, proxy2)}


async def _database(postgres_url: str, name: str) -> str:
    """Make a database on the server, so that each target's work is counted apart."""
    connection = await asyncpg.connect(postgres_url)
    await connection.execute(f"CREATE DATABASE {name}")
    await connection.close()
    head, _, options = postgres_url.partition("?")
    return f"{head.rpartition('/')[0]}/{name}?{options}"


WATCHED = ("single", "many-16", "tokens-1", "tokens-16")
"""The parts that have a watched quantity in their rows, but for the longer of a kind."""
TRIES = 3
"""Of a part whose quantity grew: the machine's moods pass, what the code costs stays."""


async def watch() -> list[str]:
    """Measure the watched quantities, and say which grew against the results kept last, each time."""
    file, before = newest()
    print(f"Against {file.name}", file=sys.stderr, flush=True)
    left, told = list(WATCHED), dict[str, str]()
    for _ in range(TRIES):
        told, again = dict[str, str](), list[str]()
        for name in left:
            rows = await measure([name], short=True)
            print(table(rows), flush=True)
            found = grown(rows, before)
            told |= found
            again += [name] if found else []
        left = again
    return list(told.values())


async def measure(names: list[str], *, short: bool) -> list[Row]:
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    rows: list[Row] = []
    async with prepared(short=short) as setting:
        for name in names:
            print(f"{name} …", file=sys.stderr, flush=True)
            rows += await MEASURES[name](setting)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--short", action="store_true", help="about a minute, for CI")
    parser.add_argument(
        "--only", action="append", choices=list(MEASURES), help="measure this; may be repeated"
    )
    parser.add_argument(
        "--watch",
        action="store_true",
        help="only see whether CPU per reply or token grew by a quarter since the kept results",
    )
    given = parser.parse_args()
    on = machine()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            if given.watch:
                told = runner.run(watch())
                sys.exit("\n".join(["Grown:", *told]) if told else 0)
            rows = runner.run(measure(given.only or list(MEASURES), short=given.short))
    except asyncio.CancelledError:
        sys.exit("Stopped; everything that was started is gone.")
    on = finished(on)
    print(f"{headline(on)}\n\n{table(rows)}")
    if given.only is None:
        form = "short" if given.short else "full"
        print(f"\nKept in {keep(rows, on, form=form)}")


if __name__ == "__main__":
    main()
