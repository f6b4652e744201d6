"""The next step follows from where the session stands."""

import pytest

from app.core.apply import Standing
from app.core.decide import CallModel, Finish, RunTools, decide
from app.core.messages import Msg, TextBlock, ToolCallBlock, ToolResultBlock
from app.core.state import AgentState

CALL = ToolCallBlock(id="1", name="Echo", input="{}")
RESULT = ToolResultBlock(id="1", name="Echo", output="ok", state="success")


def standing(*blocks: object, rounds: int = 0, answered: bool = False) -> Standing:
    message = Msg(name="Friday", role="assistant", id="r", content=list(blocks))
    state = AgentState(context=[message])
    state.reply_id, state.cur_iter = "r", rounds
    return Standing(state=state, agent_name="Friday", answered=answered, ended=False)


@pytest.mark.parametrize(
    ("where", "step"),
    [
        (standing(), CallModel()),
        (standing(CALL), RunTools([CALL])),
        (standing(CALL, RESULT, rounds=1), CallModel()),
        (standing(TextBlock(text="x"), rounds=1, answered=True), Finish("completed")),
        (standing(CALL, RESULT, rounds=3), CallModel(last=True)),
        (standing(CALL, RESULT, rounds=4), Finish("exceed_max_iters")),
        (standing(TextBlock(text="x"), rounds=3, answered=True), Finish("completed")),
        (standing(TextBlock(text="x"), rounds=4, answered=True), Finish("exceed_max_iters")),
    ],
)
def test_a_step_follows_from_the_standing_alone(where: Standing, step: object) -> None:
    assert decide(where, max_iters=3) == step
    assert decide(where, max_iters=3) == step
