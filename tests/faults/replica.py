"""A replica for fault tests: the service, a tool whose effects are counted, switches that break it.

`python -m tests.faults.replica` is a nursery: it imports the service once and makes a process for each
line of JSON on its standard input, which costs a tenth of a start from nothing. It says the process's
number on standard output, and how each one ended; when its input ends it kills them all.
"""

import asyncio
import json
import os
import select
import signal
import sys
import types
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

from app import bootstrap, cli
from app.adapters.postgres import leases
from app.adapters.postgres.database import Database
from app.core.errors import Fenced
from app.engine import failpoints, lease, worker
from app.ports.models import ToolSchema
from app.ports.tools import TextChunk, Tool, ToolCall, ToolChunk
from tests.faults import controls

POOLS: list[Database] = []


class Count:
    """A tool that must not run twice: each effect is a line in a file that no crash takes back."""

    concurrent = True
    idempotent = False

    def __init__(self, name: str) -> None:
        self.schema = ToolSchema(
            name,
            "Counts.",
            {
                "type": "object",
                "properties": {"seconds": {"type": "number"}},
                "required": ["seconds"],
            },
        )

    async def run(self, call: ToolCall) -> AsyncGenerator[ToolChunk, None]:
        seconds = float(str(call.arguments["seconds"]))
        await asyncio.sleep(seconds / 2)
        note("effects", call.key)
        yield TextChunk("counted ")
        await asyncio.sleep(seconds / 2)
        yield TextChunk("once")


def note(name: str, line: str) -> None:
    """Write a line to a file of the run; whole, whoever else writes, and whatever dies then."""
    path = os.path.join(os.environ["FAULTS_FOLDER"], name)  # noqa: PTH118
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, f"{line}\n".encode())
    finally:
        os.close(file)


def _add_tool() -> None:
    begin = bootstrap.Workshop.__init__

    def prepare(self: bootstrap.Workshop, *args: Any, **more: Any) -> None:
        begin(self, *args, **more)
        tools: list[Tool] = [Count("Count"), Count("Careful")]
        self.groups["effects"] = tools

    bootstrap.Workshop.__init__ = prepare


def _name_owners() -> None:
    """Let a lease say which replica holds it, and note each write that the fence refused."""
    claim, append = leases.PostgresLeases.claim, leases.PostgresLeases.append
    offer = worker.Worker.offer
    name = os.environ["FAULTS_NAME"]

    async def named(self: leases.PostgresLeases, *, owner: str, **more: Any) -> Any:
        return await claim(self, owner=f"{name}:{owner}", **more)

    def offered(self: worker.Worker, session_id: str) -> Any:
        taker = offer(self, session_id)
        return None if taker is None else replace(taker, owner=f"{name}:{taker.owner}")

    async def noted(self: leases.PostgresLeases, held: Any, batch: Any, **more: Any) -> Any:
        try:
            return await append(self, held, batch, **more)
        except Fenced:
            kind = "events" if batch.drafts else "renewal"
            note("fenced", f"{name} {held.session_id} {held.epoch} {kind}")
            raise

    leases.PostgresLeases.claim = named
    worker.Worker.offer = offered
    leases.PostgresLeases.append = noted


def _stop_the_clock() -> None:
    """Take away the holder's own deadline, as on a machine whose clock sleeps with it."""
    if "timeout_at" not in vars(lease.asyncio):
        raise RuntimeError("the deadline of a lease's holder has another form now")
    patient = types.SimpleNamespace(**vars(asyncio))
    patient.timeout_at = lambda _when: asyncio.timeout(None)
    lease.asyncio = patient


def _show_pool() -> None:
    """Serve how many connections are taken from the pool."""
    begin, create = Database.__init__, cli.create_app

    def remember(self: Database, *args: Any, **more: Any) -> None:
        begin(self, *args, **more)
        POOLS.append(self)

    def checked_out() -> dict[str, int]:
        pools = [each._pool for each in POOLS if each._pool is not None]
        return {"checked_out": sum(pool.get_size() - pool.get_idle_size() for pool in pools)}

    def created(*args: Any) -> Any:
        application = create(*args)
        application.add_api_route("/faults", checked_out)
        return application

    Database.__init__ = remember
    cli.create_app = created


def main() -> None:
    """Run the service until it is told to stop."""
    _add_tool()
    _name_owners()
    _show_pool()
    if os.environ.get("FAULTS_CLOCK") == "stands":
        _stop_the_clock()
    for name in os.environ.get("FAULTS_CONTROL", "").split():
        controls.CONTROLS[name]()
    if os.environ.get("BEARINGS_FAILPOINTS"):
        # The service was imported before the variable was there.
        failpoints._points = failpoints.Failpoints(os.environ["BEARINGS_FAILPOINTS"])
    cli.app(["serve", "--no-tour"])


def _bear(order: dict[str, Any]) -> int:
    pid = os.fork()
    if pid:
        return pid
    nothing, log = (
        os.open(os.devnull, os.O_RDONLY),
        os.open(order["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT),
    )
    for target, source in ((0, nothing), (1, log), (2, log)):
        os.dup2(source, target)
    os.environ.update(order["environment"])
    code = 1
    try:
        main()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:  # noqa: BLE001 - the process ends here whatever it was
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        os._exit(code)


def nursery() -> None:
    """Make processes as they are ordered, and say how they end."""
    alive: set[int] = set()
    text = b""
    while True:
        ready, _, _ = select.select([0], [], [], 0.02)
        if ready:
            read = os.read(0, 1 << 16)
            if not read:
                break
            *orders, text = (text + read).split(b"\n")
            for order in orders:
                pid = _bear(json.loads(order))
                alive.add(pid)
                print(json.dumps({"born": pid}), flush=True)
        for pid in list(alive):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                alive.discard(pid)
                code = os.waitstatus_to_exitcode(status)
                print(json.dumps({"ended": pid, "code": code}), flush=True)
    for pid in alive:
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    nursery()
