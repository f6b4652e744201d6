"""What any such service at least does: `/bare` re-frames the model's chunks, `/kept` also keeps them.

`/kept` commits the person's message, reads the last fifty, and commits the reply: what durability costs
with nothing else around it.
"""

import os
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import asyncpg
import orjson
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

MODEL_URL = os.environ["BENCH_MODEL_URL"]
TABLE = """
CREATE TABLE IF NOT EXISTS bench_messages (
  id bigserial PRIMARY KEY, session text NOT NULL, role text NOT NULL, body text NOT NULL);
CREATE INDEX IF NOT EXISTS bench_messages_session ON bench_messages (session, id);
"""
INSERT = "INSERT INTO bench_messages (session, role, body) VALUES ($1, $2, $3)"
LAST = "SELECT role, body FROM bench_messages WHERE session = $1 ORDER BY id DESC LIMIT 50"


async def _leave(_: object) -> None:
    pass


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncGenerator[None, None]:
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client,
        asyncpg.create_pool(os.environ["BENCH_DATABASE_URL"], max_size=10, reset=_leave) as pool,
    ):
        await pool.execute(TABLE)
        app.state.client, app.state.pool = client, pool
        yield


app = FastAPI(lifespan=lifespan)


async def chunks(request: Request, model: str, messages: list[Any]) -> AsyncGenerator[str, None]:
    body = {"model": model, "stream": True, "messages": messages}
    async with request.app.state.client.post(f"{MODEL_URL}/chat/completions", json=body) as answer:
        async for line in answer.content:
            if line.startswith(b"data: {"):
                for choice in orjson.loads(line[6:])["choices"]:
                    if text := choice["delta"].get("content"):
                        yield text


def event(number: int, kind: str, **fields: Any) -> bytes:
    data = orjson.dumps({"type": kind, "seq": number, **fields})
    return b"id: %d\ndata: %b\n\n" % (number, data)


@app.post("/bare/{session}/{model}")
async def bare(session: str, model: str, request: Request) -> StreamingResponse:  # noqa: ARG001
    said = (await request.json())["content"]

    async def stream() -> AsyncGenerator[bytes, None]:
        number = 1
        yield event(number, "REPLY_START")
        async for text in chunks(request, model, [{"role": "user", "content": said}]):
            number += 1
            yield event(number, "TEXT_BLOCK_DELTA", delta=text)
        yield event(number + 1, "REPLY_END")

    return StreamingResponse(stream(), media_type="text/event-stream")


@app.post("/kept/{session}/{model}")
async def kept(session: str, model: str, request: Request) -> StreamingResponse:
    said = (await request.json())["content"]
    pool = request.app.state.pool
    await pool.execute(INSERT, session, "user", said)
    rows = await pool.fetch(LAST, session)

    async def stream() -> AsyncGenerator[bytes, None]:
        number, texts = 1, []
        yield event(number, "REPLY_START", reply_id=uuid.uuid4().hex)
        messages = [{"role": row["role"], "content": row["body"]} for row in reversed(rows)]
        async for text in chunks(request, model, messages):
            texts.append(text)
            number += 1
            yield event(number, "TEXT_BLOCK_DELTA", delta=text)
        await pool.execute(INSERT, session, "assistant", "".join(texts))
        yield event(number + 1, "REPLY_END")

    return StreamingResponse(stream(), media_type="text/event-stream")


@app.get("/readyz")
async def ready() -> dict[str, str]:
    return {"status": "ok"}


if __name__ == "__main__":
    uvicorn.run(app, port=int(os.environ["BENCH_PORT"]), log_level="warning", access_log=False)
