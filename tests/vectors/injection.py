"""Replays a recorded injection case against the core."""

import json
import warnings
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from app.core.apply import Standing, apply
from app.core.events import HintBlockEvent
from app.core.injection import Surroundings, inject
from app.core.specs import ContextConfig, InjectionConfig, resolve_context
from app.core.state import AgentState, load_state

# The recordings were made with AgentScope's own defaults where a case names none.
AGENTSCOPE_CONTEXT = {"trigger_ratio": 0.8, "reserve_ratio": 0.1, "context_buffer_ratio": 0.2}
RENAMED = {"max_image_num": "max_images"}
FIELD = r"<([A-Za-z][A-Za-z0-9_-]*)>(.*?)</\1>"


def replay(case: dict[str, Any]) -> dict[str, Any]:
    """Run one case and describe the outcome in the words of its `expected`."""
    outcome: dict[str, Any] = {
        "injected": False,
        "fields": {},
        "field_order": [],
        "hint_text": None,
        "placement": None,
        "event": None,
        "error": None,
        "warnings": [],
    }
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            config = InjectionConfig(**case["config"])
            given = {RENAMED.get(k, k): v for k, v in (case["context_config"] or {}).items()}
            context = resolve_context(ContextConfig(**(AGENTSCOPE_CONTEXT | given)), config)
        except ValidationError as error:
            located = [list(each["loc"]) for each in error.errors()]
            outcome["error"] = {"type": "ValidationError", "loc": located}
            return outcome
        except ValueError as error:
            outcome["error"] = {"type": "ValueError", "message": str(error)}
            return outcome
    outcome["warnings"] = [each.category.__name__ for each in caught]
    standing = Standing(state=load_state(case["state_before"]), agent_name=case["agent_name"])
    for run in range(case["runs"]):
        if run == 1 and isinstance(case.get("before_run_2"), dict):
            # What changes between two runs overrides the case's own fields of that name.
            case = case | case["before_run_2"]
            if "state_before" in case["before_run_2"]:
                standing.state = load_state(case["state_before"])
        before = [len(message.content) for message in standing.state.context]
        around = Surroundings(
            now=datetime.fromisoformat(case["now"]),
            tokens=case["input_tokens"],
            context_size=case["context_size"],
            environment={},
        )
        text = inject(
            standing.state,
            agent_name=case["agent_name"],
            config=config,
            context=context,
            around=around,
        )
        if text is not None:
            event = HintBlockEvent(
                reply_id=standing.state.reply_id,
                block_id="hint",
                source=config.injection_source,
                hint=text,
            )
            apply(standing, event)
    if text is None:
        return outcome
    return outcome | _describe(standing.state, before, case, text, config)


def _describe(
    state: AgentState, before: list[int], case: dict[str, Any], text: str, config: InjectionConfig
) -> dict[str, Any]:
    tail = state.context[-1]
    names = [name for name in case["expected"]["field_order"] if f"<{name}>" in text]
    fields = {name: _field(text, name) for name in names}
    extra = [line for line in text.split("\n") if line.startswith("<") and line.endswith(">")]
    found = [line[1:].split(">")[0] for line in extra if "</" in line]
    event = None
    if config.emit_hint_event:
        event = {
            "type": "HINT_BLOCK",
            "reply_id": state.reply_id,
            "source": config.injection_source,
            "hint_equals_block": True,
            "block_id_equals_block": True,
        }
    return {
        "injected": True,
        "fields": fields,
        "field_order": [name for name in found if name in names] or names,
        "hint_text": text,
        "placement": {
            "new_message": len(state.context) > len(before),
            "message_index": len(state.context) - 1,
            "block_index": len(tail.content) - 1,
            "message_role": tail.role,
            "message_name": tail.name,
            "message_id": tail.id,
            "message_id_is_reply_id": tail.id == case["state_before"]["reply_context"]["reply_id"],
            "block_source": config.injection_source,
        },
        "event": event,
    }


def _field(text: str, name: str) -> str:
    value = text.split(f"<{name}>", 1)[1].rsplit(f"</{name}>", 1)[0]
    return value.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


def differences(case: dict[str, Any]) -> list[str]:
    """Name what a case's outcome has otherwise than recorded."""
    got, wanted = replay(case), dict(case["expected"])
    if wanted["error"] is not None and got["error"] is not None:
        # What is refused is the promise; the words are ours.
        wanted["error"] = {"type": wanted["error"]["type"], "loc": wanted["error"].get("loc")}
        got["error"] = {"type": got["error"]["type"], "loc": got["error"].get("loc")}
    return [
        f"{key}: {json.dumps(got[key], ensure_ascii=False)} instead of "
        f"{json.dumps(wanted[key], ensure_ascii=False)}"
        for key in wanted
        if got[key] != wanted[key]
    ]
