"""Sends a message and takes the time of what comes back."""

import time
from dataclasses import dataclass

import aiohttp
import orjson

HEADERS = {"Accept": "text/event-stream", "Content-Type": "application/json"}
MESSAGE = orjson.dumps({"content": "hi"})
EVENT = b"data: {"
TOKEN = b'"TEXT_BLOCK_DELTA"'
END = b'"REPLY_END"'


@dataclass(frozen=True)
class Reply:
    """When things came, in seconds after the message was sent."""

    first_event: float
    first_token: float
    end: float
    events: int


async def reply(client: aiohttp.ClientSession, address: str) -> Reply:
    """Send a message and read its reply to the end, looking at its bytes no closer than needed."""
    begun = time.perf_counter()
    first_event = first_token = 0.0
    events, tail = 0, b""
    async with client.post(f"{address}/messages", data=MESSAGE, headers=HEADERS) as answer:
        assert answer.status == 200, await answer.text()
        async for chunk in answer.content.iter_any():
            # Events are counted by their beginnings; the tail is for those that two chunks share.
            seen = tail + chunk
            now = time.perf_counter() - begun
            events += seen.count(EVENT) - tail.count(EVENT)
            if not first_event and events:
                first_event = now
            if not first_token and TOKEN in seen:
                first_token = now
            tail = seen[-64:]
    assert first_token, "no text came"
    assert END in tail or END in seen, "the reply did not end"
    return Reply(first_event, first_token, time.perf_counter() - begun, events)


async def text(client: aiohttp.ClientSession, address: str) -> str:
    """Send a message and return the whole text of its reply."""
    async with client.post(f"{address}/messages", data=MESSAGE, headers=HEADERS) as answer:
        body = await answer.read()
    events = [orjson.loads(line[6:]) for line in body.split(b"\n") if line.startswith(EVENT)]
    return "".join(each["delta"] for each in events if each["type"] == "TEXT_BLOCK_DELTA")
