"""A session's live surroundings reach the agent while it works."""

import httpx

from app.adapters.postgres.database import Database
from tests.e2e.test_replicas import DONE, STOP, USAGE, chunk
from tests.support.checker import violations
from tests.support.model_server import model_server
from tests.support.service import Service, serving

TASK_LIST = {
    "choices": [
        {
            "index": 0,
            "delta": {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "TaskList"}}]},
            "finish_reason": "tool_calls",
        }
    ]
}
TRIGGERS = {"injection": {"trigger_fields": ["battery-level"]}}


async def put(client: httpx.AsyncClient, session: str, **values: object) -> None:
    values = {name.replace("_", "-"): value for name, value in values.items()}
    answer = await client.put(f"/v1/sessions/{session}/environment", json=values)
    assert answer.status_code == 200, answer.text


def hints(log: list[dict]) -> list[str]:
    return [event["hint"] for event in log if event["type"] == "HINT_BLOCK"]


async def test_a_change_is_told_at_the_next_message_and_once(service: Service) -> None:
    session = await service.session(await service.agent(**TRIGGERS))
    await put(service.client, session, battery_level="78%", location="Hangzhou office")
    await service.send(session, "hello")
    await service.send(session, "hello again")
    await put(service.client, session, battery_level="12%", location="Hangzhou office")
    await service.send(session, "and now?")
    await service.send(session, "and now?")
    told = hints(await service.log(session))

    assert len(told) == 2
    assert "<battery-level>78%</battery-level>" in told[0]
    assert "<current-time>" in told[0]
    assert "<battery-level>12%</battery-level>\n<location>Hangzhou office</location>" in told[1]
    assert "<current-time>" not in told[1]


async def test_a_change_during_a_reply_is_told_before_its_next_step(
    own_url: str, own_database: Database
) -> None:
    wait = [TASK_LIST, {"_sleep": 0.5}, USAGE, DONE]
    async with (
        model_server(wait, [chunk("done"), STOP, USAGE, DONE]) as model,
        serving(
            database_url=own_url, model="openai:test", model_base_url=model.base_url
        ) as service,
    ):
        session = await service.session(await service.agent(**TRIGGERS))
        await put(service.client, session, battery_level="78%")
        await service.client.post(f"/v1/sessions/{session}/messages", json={"content": "go"})
        while not model.requests:
            await service.client.get("/healthz")
        await put(service.client, session, battery_level="5%")
        while not (log := await service.log(session)) or log[-1]["type"] != "REPLY_END":
            pass

    told = hints(log)
    assert len(told) == 2
    assert "<battery-level>5%</battery-level>" in told[1]
    roles = [message["role"] for message in model.requests[1]["messages"]]
    assert roles == ["system", "user", "user", "assistant", "tool", "user"]
    assert await violations(own_database, session) == []
