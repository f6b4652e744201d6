"""The main job, over HTTP."""

from tests.support.service import Service, sse


async def test_a_message_is_answered_as_a_stream(service: Service) -> None:
    session = await service.session()
    async with service.client.stream(
        "POST",
        f"/v1/sessions/{session}/messages",
        json={"content": "hello"},
        headers={"Accept": "text/event-stream"},
    ) as answer:
        events = [event async for event in sse(answer.aiter_lines())]

    assert answer.status_code == 200
    assert [events[0]["type"], events[1]["type"], events[-1]["type"]] == [
        "MESSAGE_RECEIVED",
        "REPLY_START",
        "REPLY_END",
    ]
    assert events == await service.log(session)
