"""What any such service at least does: asks the model, and re-frames its chunks as events.

With a database (`proxy2`) it also does what durability costs at least: it commits the person's message,
reads the last fifty, and commits the reply. Without one (`proxy`) it keeps nothing.
"""

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
import asyncpg
import orjson
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

MODEL_URL = os.environ["BENCH_MODEL_URL"]
DATABASE_URL = os.environ.get("BENCH_DATABASE_URL")
TABLE = """
CREATE TABLE IF NOT EXISTS bench_messages (
  id bigserial PRIMARY KEY, session text NOT NULL, role text NOT NULL, body text NOT NULL);
CREATE INDEX IF NOT EXISTS bench_messages_session ON bench_messages (session, id);
"""
INSERT = "INSERT INTO bench_messages (session, role, body) VALUES ($1, $2, $3)"
LAST = "SELECT role, body FROM bench_messages WHERE session = $1 ORDER BY id DESC LIMIT 50"


async def _as_it_is(_: object) -> None:
    """Give a connection back without the round trip that resets it."""


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncGenerator[None, None]:
    async with AsyncExitStack() as stack:
        connector = aiohttp.TCPConnector(limit=0)
        app.state.client = await stack.enter_async_context(
            aiohttp.ClientSession(connector=connector)
        )
        app.state.pool = None
        if DATABASE_URL is not None:
            app.state.pool = await stack.enter_async_context(
                asyncpg.create_pool(DATABASE_URL, max_size=10, reset=_as_it_is)
            )
            await app.state.pool.execute(TABLE)
        yield


app = FastAPI(lifespan=lifespan)


async def texts(model: str, messages: list[Any]) -> AsyncGenerator[str, None]:
    body = orjson.dumps({"model": model, "stream": True, "messages": messages})
    async with app.state.client.post(f"{MODEL_URL}/chat/completions", data=body) as answer:
        async for line in answer.content:
            if line.startswith(b"data: {"):
                for choice in orjson.loads(line[6:])["choices"]:
                    if text := choice["delta"].get("content"):
                        yield text


def event(number: int, kind: str, **fields: Any) -> bytes:
    data = orjson.dumps({"type": kind, "seq": number, **fields})
    return b"id: %d\ndata: %b\n\n" % (number, data)


@app.post("/{session}/{model}/messages")
async def send(session: str, model: str, request: Request) -> StreamingResponse:
    said, pool = orjson.loads(await request.body())["content"], app.state.pool
    messages = [{"role": "user", "content": said}]
    if pool is not None:
        await pool.execute(INSERT, session, "user", said)
        rows = await pool.fetch(LAST, session)
        messages = [{"role": row["role"], "content": row["body"]} for row in reversed(rows)]

    async def stream() -> AsyncGenerator[bytes, None]:
        number, told = 1, []
        yield event(number, "REPLY_START")
        async for text in texts(model, messages):
            told.append(text)
            number += 1
            yield event(number, "TEXT_BLOCK_DELTA", delta=text)
        if pool is not None:
            await pool.execute(INSERT, session, "assistant", "".join(told))
        yield event(number + 1, "REPLY_END")

    return StreamingResponse(stream(), media_type="text/event-stream")


@app.put("/{session}/{model}/held")
async def hold(session: str, model: str, request: Request) -> int:  # noqa: ARG001
    """Let a session hold messages that were said before."""
    before = [(session, each["role"], each["text"]) for each in orjson.loads(await request.body())]
    await app.state.pool.executemany(INSERT, before)
    # Without statistics the planner may walk the wrong index; in time Postgres takes them by itself.
    await app.state.pool.execute("ANALYZE bench_messages")
    return len(before)


@app.get("/{session}/{model}/events")
async def watch(session: str, model: str) -> StreamingResponse:  # noqa: ARG001
    """Stream one event and then nothing, as to a reader of a quiet session."""

    async def stream() -> AsyncGenerator[bytes, None]:
        yield event(1, "REPLY_START")
        await asyncio.Event().wait()

    return StreamingResponse(stream(), media_type="text/event-stream")


@app.get("/readyz")
async def ready() -> dict[str, str]:
    if app.state.pool is not None:
        await app.state.pool.fetchval("SELECT 1")
    return {"status": "ok"}


if __name__ == "__main__":
    uvicorn.run(
        app,
        port=int(os.environ["BENCH_PORT"]),
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=1,
        # Longer than the client keeps one, so that none is closed just as it is used again.
        timeout_keep_alive=75,
    )
