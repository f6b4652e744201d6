"""Anything people do with sessions over HTTP, in any order, against a model of a few lines.

The service runs as a process of its own, which some steps kill. After each run every session is brought
to rest, and the invariants are asked of it.
"""

import asyncio
import json
import os
from dataclasses import dataclass, field
from typing import Any

import httpx
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from app.adapters.postgres.database import Database
from tests.support.checker import violations
from tests.support.service import Process, process, read_log

SPEC = {
    "name": "Friday",
    "tools": {"builtin": ["tasks"], "external": [{"name": "Lookup"}]},
    "interrupt_on": {"TaskCreate": True},
}
ASK = 'call TaskCreate {"subject": "s", "description": "d"}'
CONTENTS = [
    "echo hello",
    "long 300",
    ASK,
    f'{ASK} TaskCreate {{"subject": "t", "description": "d"}}',
    'call Lookup {"q": 1} Lookup {"q": 2}',
    "work",
]
POLICIES = ["enqueue", "reject", "interrupt", "rollback", "steer"]
STEPS = 60
RUNS = int(os.environ.get("STATEFUL_RUNS", "6"))
"""More of them are other ones each time; the six of every day are always the same."""


@dataclass
class Talk:
    """What the test knows of a session: what was accepted, and what a reader has joined."""

    id: str
    accepted: dict[str, str] = field(default_factory=dict)
    seen: list[dict[str, Any]] = field(default_factory=list)
    keys: dict[str, tuple[dict[str, Any], str]] = field(default_factory=dict)
    deleted: bool = False


class Fleet:
    """A process that is started again whenever it was killed, and the loop that all of it runs on."""

    def __init__(self, loop: asyncio.AbstractEventLoop, url: str) -> None:
        self._loop, self._url = loop, url
        self._running: Any = None
        self.replica: Process | None = None

    def do(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(120)

    async def up(self) -> Process:
        if self.replica is None:
            self._running = process(self._url, BEARINGS_LEASE_TTL="2", BEARINGS_LOG_LEVEL="error")
            self.replica = await self._running.__aenter__()
        return self.replica

    async def down(self) -> None:
        if self.replica is not None:
            self.replica.child.kill()
            await self._running.__aexit__(None, None, None)
            self.replica = None

    async def ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        answer = await (await self.up()).client.request(method, path, **more)
        assert answer.status_code < 500, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer


class People(RuleBasedStateMachine):
    fleet: Fleet
    database: Database
    agent: str
    steps = 0

    talks = Bundle("talks")

    def ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        type(self).steps += 1
        return self.fleet.do(self.fleet.ask(method, path, **more))

    @initialize(target=talks)
    def first(self) -> Talk:
        return self._create()

    @rule(target=talks)
    def create(self) -> Talk:
        return self._create()

    def _create(self) -> Talk:
        made = self.ask("POST", "/v1/sessions", json={"agent_id": self.agent})
        assert made.status_code == 201
        talk = Talk(made.json()["id"])
        self.all.append(talk)
        return talk

    def __init__(self) -> None:
        super().__init__()
        self.all: list[Talk] = []

    @rule(talk=talks, content=st.sampled_from(CONTENTS), policy=st.sampled_from(POLICIES))
    def send(self, talk: Talk, content: str, policy: str) -> None:
        body = {"content": content, "on_busy": policy}
        self._sent(talk, self.ask("POST", f"/v1/sessions/{talk.id}/messages", json=body), policy)

    @rule(talk=talks, key=st.sampled_from(["k1", "k2"]), content=st.sampled_from(CONTENTS[:3]))
    def send_with_key(self, talk: Talk, key: str, content: str) -> None:
        body = {"content": content}
        answer = self.ask(
            "POST",
            f"/v1/sessions/{talk.id}/messages",
            json=body,
            headers={"Idempotency-Key": key},
        )
        known = talk.keys.get(key)
        if talk.deleted:
            assert answer.status_code in {404, 422, 202}
        elif known is None:
            self._sent(talk, answer, "enqueue")
            talk.keys[key] = (body, answer.json()["reply_id"])
        elif known[0] == body:
            assert answer.headers["idempotency-replayed"] == "true"
            assert answer.json()["reply_id"] == known[1]
        else:
            assert answer.json()["code"] == "idempotency_key_reused"

    def _sent(self, talk: Talk, answer: httpx.Response, policy: str) -> None:
        if talk.deleted:
            assert answer.status_code == 404
        elif answer.status_code == 409:
            assert policy == "reject"
            assert answer.json()["code"] == "session_busy"
        else:
            assert answer.status_code == 202, answer.text
            accepted = answer.json()
            talk.accepted[accepted["message_id"]] = accepted["reply_id"]

    @rule(talk=talks, most=st.integers(1, 200))
    def read(self, talk: Talk, most: int) -> None:
        answer = self.ask(
            "GET",
            f"/v1/sessions/{talk.id}/events",
            params={"after": len(talk.seen), "limit": most},
            headers={"Accept": "application/json"},
        )
        if talk.deleted:
            assert answer.status_code == 404
            return
        talk.seen += answer.json()["data"]
        assert [event["seq"] for event in talk.seen] == list(range(1, len(talk.seen) + 1))

    @rule(talk=talks, most=st.integers(1, 60))
    def reconnect(self, talk: Talk, most: int) -> None:
        """Read the stream for a while, and cut it off."""
        if talk.deleted:
            return

        async def some() -> list[dict[str, Any]]:
            url = f"/v1/sessions/{talk.id}/events"
            headers = {"Last-Event-ID": str(len(talk.seen))}
            events: list[dict[str, Any]] = []
            replica = await self.fleet.up()
            async with replica.client.stream(
                "GET", url, params={"follow": "false"}, headers=headers
            ) as answer:
                assert answer.status_code == 200
                async for line in answer.aiter_lines():
                    if line.startswith("data: "):
                        events.append(json.loads(line[6:]))
                        if len(events) == most:
                            break
            return events

        type(self).steps += 1
        talk.seen += self.fleet.do(some())
        assert [event["seq"] for event in talk.seen] == list(range(1, len(talk.seen) + 1))

    @rule(talk=talks)
    def interrupt(self, talk: Talk) -> None:
        answer = self.ask("POST", f"/v1/sessions/{talk.id}/interrupt")
        assert answer.status_code == (404 if talk.deleted else 200)
        if answer.status_code == 200:
            assert answer.json()["status"] in {"interrupted", "interrupting", "idle"}

    @rule(
        talk=talks,
        decision=st.sampled_from(["approve", "reject", "respond", "edit"]),
        at=st.integers(0, 2),
    )
    def confirm(self, talk: Talk, decision: str, at: int) -> None:
        call = self._pending(talk, "TaskCreate", at)
        result: dict[str, Any] = {"tool_call_id": call or "call_1", "decision": decision}
        if decision == "edit":
            result["input"] = {"subject": "other", "description": "d"}
        if decision == "respond":
            result["message"] = "done by hand"
        answer = self.ask(
            "POST", f"/v1/sessions/{talk.id}/confirmations", json={"results": [result]}
        )
        assert answer.status_code in ({404} if talk.deleted else {202, 409})

    @rule(talk=talks, state=st.sampled_from(["success", "error"]), at=st.integers(0, 2))
    def hand_in(self, talk: Talk, state: str, at: int) -> None:
        call = self._pending(talk, "Lookup", at)
        result = {"tool_call_id": call or "call_1", "output": "found", "state": state}
        answer = self.ask(
            "POST", f"/v1/sessions/{talk.id}/tool-results", json={"results": [result]}
        )
        assert answer.status_code in ({404} if talk.deleted else {202, 409})

    def _pending(self, talk: Talk, tool: str, at: int) -> str | None:
        if talk.deleted:
            return None
        snapshot = self.ask("GET", f"/v1/sessions/{talk.id}").json()
        calls = [each["id"] for each in snapshot["pending_tool_calls"] if each["name"] == tool]
        return calls[at % len(calls)] if calls else None

    @rule(talk=talks)
    def environment(self, talk: Talk) -> None:
        answer = self.ask("PUT", f"/v1/sessions/{talk.id}/environment", json={"place": "here"})
        assert answer.status_code == (404 if talk.deleted else 200)

    @rule(target=talks, talk=talks)
    def fork(self, talk: Talk) -> Talk:
        answer = self.ask("POST", f"/v1/sessions/{talk.id}/fork", json={})
        if talk.deleted:
            assert answer.status_code == 404
            return talk
        assert answer.status_code == 201
        copy = Talk(answer.json()["id"])
        self.all.append(copy)
        return copy

    @precondition(lambda self: len(self.all) > 1)
    @rule(talk=consumes(talks))
    def delete(self, talk: Talk) -> None:
        answer = self.ask("DELETE", f"/v1/sessions/{talk.id}")
        assert answer.status_code == (404 if talk.deleted else 204)
        talk.deleted = True

    @rule()
    def crash(self) -> None:
        type(self).steps += 1
        self.fleet.do(self.fleet.down())

    def teardown(self) -> None:
        for talk in self.all:
            if not talk.deleted:
                self._settle(talk)

    def _settle(self, talk: Talk) -> None:
        """Answer whatever waits until the session rests, and ask the invariants."""

        async def settle() -> None:
            async with asyncio.timeout(60):
                while True:
                    snapshot = (await self.fleet.ask("GET", f"/v1/sessions/{talk.id}")).json()
                    if snapshot["status"] == "idle":
                        break
                    for call in snapshot["pending_tool_calls"]:
                        await self._answer(talk, call)
                    await asyncio.sleep(0.05)
            log = await read_log((await self.fleet.up()).client, talk.id)
            ended = [event["reply_id"] for event in log if event["type"] == "REPLY_END"]
            received = {
                event["message"]["id"]: event["reply_id"]
                for event in log
                if event["type"] == "MESSAGE_RECEIVED"
            }
            assert talk.accepted.items() <= received.items()
            assert sorted(set(received.values())) == sorted(ended)
            assert log[: len(talk.seen)] == talk.seen
            assert await violations(self.database, talk.id) == []

        self.fleet.do(settle())

    async def _answer(self, talk: Talk, call: dict[str, Any]) -> None:
        path, result = "tool-results", {"output": "found"}
        if call["state"] == "asking":
            path, result = "confirmations", {"decision": "approve"}
        body = {"results": [{"tool_call_id": call["id"], **result}]}
        await self.fleet.ask("POST", f"/v1/sessions/{talk.id}/{path}", json=body)


async def test_whatever_people_do_nothing_is_lost_and_nothing_is_done_twice(
    own_url: str, own_database: Database
) -> None:
    loop = asyncio.get_running_loop()
    fleet = Fleet(loop, own_url)
    made = await fleet.ask("POST", "/v1/agents", json=SPEC)

    class Here(People):
        pass

    Here.fleet, Here.database, Here.agent = fleet, own_database, made.json()["id"]
    Here.steps = 0
    chosen = settings(
        max_examples=RUNS,
        stateful_step_count=STEPS,
        deadline=None,
        derandomize="STATEFUL_RUNS" not in os.environ,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    try:
        await asyncio.to_thread(run_state_machine_as_test, Here, settings=chosen)
    finally:
        await fleet.down()

    assert Here.steps >= 300, Here.steps
