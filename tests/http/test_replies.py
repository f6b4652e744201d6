"""Replies over HTTP."""

from tests.http.problems import problem
from tests.support.service import Service


async def test_a_reply_tells_how_it_went(service: Service) -> None:
    session = await service.session()
    final = await service.send(session, "plan it")
    reply = (await service.client.get(f"/v1/sessions/{session}/replies/{final['id']}")).json()
    snapshot = (await service.client.get(f"/v1/sessions/{session}")).json()

    assert (reply["status"], reply["finished_reason"]) == ("ended", "completed")
    assert reply["error"] is None
    assert reply["created_at"] <= reply["started_at"] <= reply["finished_at"]
    assert reply["usage"] == snapshot["usage"] == final["usage"]
    assert (snapshot["status"], snapshot["reply_id"], snapshot["queued"]) == ("idle", None, 0)


async def test_replies_are_listed_newest_first(service: Service) -> None:
    session = await service.session()
    made = [(await service.send(session, text))["id"] for text in ("one", "two", "three")]
    path = f"/v1/sessions/{session}/replies"
    first = (await service.client.get(path, params={"limit": 2})).json()
    rest = (await service.client.get(path, params={"cursor": first["next_cursor"]})).json()

    assert [reply["id"] for reply in first["data"] + rest["data"]] == made[::-1]
    assert rest["next_cursor"] is None


async def test_a_reply_is_found_in_its_own_session_alone(service: Service) -> None:
    session, other = await service.session(), await service.session()
    final = await service.send(session, "hello")
    answer = await service.client.get(f"/v1/sessions/{other}/replies/{final['id']}")

    problem(answer, 404, "not_found")


async def test_a_round_limit_of_the_message_ends_its_reply(service: Service) -> None:
    session = await service.session()
    final = await service.send(session, "plan it", max_iters=1)
    reply = (await service.client.get(f"/v1/sessions/{session}/replies/{final['id']}")).json()

    assert reply["finished_reason"] == final["finished_reason"] == "exceed_max_iters"
