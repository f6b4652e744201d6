"""`AgentState` is AgentScope 2.0's document."""

import json
from pathlib import Path

import jsonschema

from app.core.state import AgentState, load_state

FOLDER = Path(__file__).parents[1] / "vectors"


def test_a_state_of_ours_fits_the_recorded_schema() -> None:
    schema = json.loads((FOLDER / "agentstate.schema.json").read_text(encoding="utf-8"))
    checker = jsonschema.Draft202012Validator(schema)
    cases = json.loads((FOLDER / "injection_vectors.json").read_text(encoding="utf-8"))
    for case in cases:
        ours = json.loads(load_state(case["state_before"]).model_dump_json())
        checker.validate(ours)

        assert {key: ours[key] for key in case["state_before"]} == _with_codes(case["state_before"])


def _with_codes(document: dict) -> dict:
    for message in document["context"]:
        if message["error"] is not None:
            message["error"].setdefault("code", None)
    return document


def test_the_legacy_form_loads_and_does_not_override_what_is_newer() -> None:
    old = load_state({"session_id": "s", "reply_id": "r", "cur_iter": 4})
    both = load_state({"reply_id": "old", "cur_iter": 4, "reply_context": {"reply_id": "new"}})

    assert (old.reply_id, old.cur_iter) == ("r", 4)
    assert (both.reply_id, both.cur_iter) == ("new", 4)


def test_unknown_keys_are_ignored_wherever_they_stand() -> None:
    state = load_state({"shoe_size": 43, "tasks_context": {"tasks": [], "mood": "good"}})

    assert state == AgentState()


def test_the_properties_are_not_part_of_the_document() -> None:
    state = AgentState()
    state.reply_id, state.cur_iter = "r", 2
    written = json.loads(state.model_dump_json())

    assert written["reply_context"]["reply_id"] == "r"
    assert written["reply_context"]["cur_iter"] == 2
    assert "reply_id" not in written
    assert load_state(state.model_dump_json()) == state
