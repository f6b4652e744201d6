"""A real browser's `EventSource`, on a page of another origin, across the death of the service."""

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from app.adapters.postgres.database import Database
from tests.e2e.test_replicas import DONE, STOP, USAGE, chunk, until_idle
from tests.support.checker import violations
from tests.support.model_server import model_server
from tests.support.service import free_port, process, read_log

BROWSER = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)
PAGE = """<!doctype html><title>reader</title><script>
const seen = [], tell = (path) => fetch(path, {method: "POST", body: JSON.stringify(seen)});
const source = new EventSource("%s");
source.onmessage = (message) => {
  const event = JSON.parse(message.data);
  seen.push({id: message.lastEventId, event});
  if ((event.delta || "").endsWith("an answer")) tell("/half");
  if (event.type === "REPLY_END") { source.close(); tell("/whole"); }
};
</script>"""


class Reader:
    """Serves the page, and hears what it has read."""

    def __init__(self) -> None:
        self.page = ""
        self.half: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self.whole: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()

    async def serve(self, port: int) -> web.AppRunner:
        app = web.Application(client_max_size=2**24)
        app.router.add_get("/", self._show)
        app.router.add_post("/{part:half|whole}", self._hear)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        return runner

    async def _show(self, _request: web.Request) -> web.Response:
        return web.Response(text=self.page, content_type="text/html")

    async def _hear(self, request: web.Request) -> web.Response:
        told = {"half": self.half, "whole": self.whole}[request.match_info["part"]]
        if not told.done():
            told.set_result(json.loads(await request.text()))
        return web.Response()


@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium on this machine")
async def test_an_event_source_reads_every_event_once_across_a_kill_and_a_restart(
    own_url: str, own_database: Database, tmp_path: Path
) -> None:
    half = [chunk("half "), chunk("an answer"), {"_sleep": 600}]
    whole = [*[chunk(f"word {number} ") for number in range(200)], STOP, USAGE, DONE]
    port, pages = free_port(), free_port()
    reader = Reader()
    runner = await reader.serve(pages)
    async with model_server(half, whole) as model:
        settings = {
            "BEARINGS_MODEL": "openai:test",
            "BEARINGS_MODEL_BASE_URL": model.base_url,
            "BEARINGS_LEASE_TTL": "2",
            "BEARINGS_CORS_ORIGINS": f"http://127.0.0.1:{pages}",
        }
        async with process(own_url, port=port, **settings) as one:
            agent = (await one.client.post("/v1/agents", json={"name": "Friday"})).json()["id"]
            made = await one.client.post("/v1/sessions", json={"agent_id": agent})
            session = made.json()["id"]
            reader.page = PAGE % f"http://127.0.0.1:{port}/v1/sessions/{session}/events"
            browser = await asyncio.create_subprocess_exec(
                str(BROWSER),
                *FLAGS,
                f"--user-data-dir={tmp_path}",
                f"http://127.0.0.1:{pages}/",
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
            )
            try:
                await one.client.post(f"/v1/sessions/{session}/messages", json={"content": "hello"})
                seen_before = await asyncio.wait_for(reader.half, 60)
                one.child.kill()
                await one.child.wait()
                async with process(own_url, port=port, **settings) as two:
                    seen = await asyncio.wait_for(reader.whole, 60)
                    await until_idle(two.client, session)
                    log = await read_log(two.client, session)
            finally:
                browser.kill()
                await browser.wait()
                await runner.cleanup()

    assert [each["event"] for each in seen] == log
    assert [int(each["id"]) for each in seen] == [event["seq"] for event in log]
    assert seen[: len(seen_before)] == seen_before
    assert [event["type"] for event in log].count("REPLY_RESUMED") == 1
    assert await violations(own_database, session) == []
