"""The `bearings` command."""

import asyncio
import gc
import signal
import socket
import sys
from typing import Annotated

import typer
import uvicorn
from fastapi import FastAPI
from pydantic import ValidationError

from app import bootstrap
from app.adapters.postgres.migrating import migrate as run_migrations
from app.chaos import demonstrate
from app.config import Settings
from app.main import create_app

app = typer.Typer(no_args_is_help=True, help="Agents that keep their bearings.")

TOUR = """
Bearings is at {url}   (API: {url}/docs)

Try it, in another terminal:

  B={url} J='Content-Type: application/json'
  AGENT=$(curl -s $B/v1/agents -H "$J" -d '{{"name": "Friday"}}' | {get_id})
  SESSION=$(curl -s $B/v1/sessions -H "$J" -d "{{\\"agent_id\\": \\"$AGENT\\"}}" | {get_id})
  curl -N $B/v1/sessions/$SESSION/messages -H "$J" -H 'Accept: text/event-stream' \\
       -d '{{"content": "plan a birthday party"}}'
"""
GET_ID = "python3 -c 'import json,sys; print(json.load(sys.stdin)[\"id\"])'"


def _settings() -> Settings:
    try:
        settings = Settings()
        bootstrap.check_settings(settings)
    except ValidationError as error:
        for each in error.errors():
            name = "_".join(str(part) for part in each["loc"]).upper()
            said = each["msg"].removeprefix("Value error, ")
            typer.echo(f"BEARINGS_{name}: {said}" if name else said, err=True)
        raise typer.Exit(2) from error
    except ValueError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from error
    return settings


class _Server(uvicorn.Server):
    """Says where it is once it listens, and lets go of sessions as soon as it is told to stop."""

    def __init__(self, application: FastAPI, config: uvicorn.Config, *, tour: bool) -> None:
        super().__init__(config)
        self._application, self._tour = application, tour

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        _collect_seldom()
        if self.started and self.servers:
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
            typer.echo(
                TOUR.format(url=url, get_id=GET_ID) if self._tour else f"Bearings is at {url}"
            )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        engine = getattr(self._application.state, "engine", None)
        if engine is not None:
            engine.ending.set()
        await super().shutdown(sockets)


def _collect_seldom() -> None:
    """Take what is there now out of the garbage collector's rounds, and let these be rarer.

    Replies make many short-lived objects and few cycles. Measured with `make bench`, in pairs: about a
    twelfth more replies per second at 16 sessions, nothing to be seen for one client.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def _leave(_number: int, _frame: object) -> None:
    sys.exit(0)


@app.command()
def serve(*, tour: Annotated[bool, typer.Option(help="Print a few lines to try.")] = True) -> None:
    """Serve HTTP until told to stop."""
    settings = _settings()
    application = create_app(settings)
    config = uvicorn.Config(
        application,
        host=settings.host,
        port=settings.port,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=int(settings.drain_grace) + 2,
        timeout_keep_alive=75,
    )
    # uvicorn raises the signal that ended it once more when everything is shut down: that is success.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _leave)
    _Server(application, config, tour=tour).run()


@app.command()
def migrate() -> None:
    """Bring the database's tables to this release's."""

    async def run() -> None:
        async with bootstrap.database(_settings()) as reached:
            await run_migrations(reached)

    asyncio.run(run())
    typer.echo("The database is up to date.")


@app.command()
def chaos(
    *,
    ttl: Annotated[
        float, typer.Option(min=2, max=120, help="Seconds of a lease.", show_default=True)
    ] = 3,
    gently: Annotated[
        bool, typer.Option(help="Tell the replica to stop (SIGTERM) instead of killing it.")
    ] = False,
) -> None:
    """Kill one of two replicas in the middle of a reply, and show what a client sees.

    Everything is its own and gone afterwards: a Postgres, a fake model, two processes of the service.
    """
    whole = asyncio.run(demonstrate(typer.echo, ttl=ttl, gently=gently))
    raise typer.Exit(0 if whole else 1)


if __name__ == "__main__":
    app()
