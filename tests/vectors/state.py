"""Replays a recorded AgentState case against the core."""

import json
from typing import Any

from pydantic import TypeAdapter

from app.core.messages import Block
from app.core.state import load_state

blocks = TypeAdapter(list[Block])


def differences(case: dict[str, Any]) -> list[str]:
    """Name what a case's outcome has otherwise than recorded."""
    state = load_state(case["state_before"])
    args = dict(case["args"])
    if "blocks" in args:
        args["blocks"] = blocks.validate_python(args["blocks"])
    messages_before = len(state.context)
    asked = getattr(state, case["method"])
    returned = asked(**args) if callable(asked) else asked
    got: dict[str, Any] = {
        "returns": returned,
        "message_count": len(state.context),
        "new_message": len(state.context) > messages_before,
        "reply_id": state.reply_id,
        "cur_iter": state.cur_iter,
        "duplicate_message_ids": len({each.id for each in state.context}) < len(state.context),
    }
    if isinstance(returned, list):
        held = [block for message in state.context for block in message.content]
        got["returns"] = [block.id for block in returned]
        got["returns_live_objects"] = all(any(b is each for b in held) for each in returned)
    found = [
        f"{key}: {json.dumps(got[key])} instead of {json.dumps(wanted)}"
        for key, wanted in (case["expected"] or {}).items()
        if key in got and got[key] != wanted
    ]
    after = json.loads(state.model_dump_json())
    for message in after["context"]:
        if message["error"] is not None:
            message["error"].pop("code")
    wanted = case.get("state_after")
    if wanted is not None:
        found += [
            f"{key}: {json.dumps(after[key])} instead of {json.dumps(wanted[key])}"
            for key in wanted
            if _without_times(after[key]) != _without_times(wanted[key])
        ]
    return found


def _without_times(value: Any) -> Any:
    """Drop the creation time of messages that the call itself made: ours are stamped by the engine."""
    if isinstance(value, list):
        return [
            {key: each for key, each in item.items() if key not in ("created_at", "finished_at")}
            if isinstance(item, dict)
            else item
            for item in value
        ]
    return value
