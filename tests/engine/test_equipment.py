"""What is counted of a prompt."""

from datetime import timedelta

from app.core.messages import AssistantMsg, Msg, TextBlock, UserMsg
from app.core.specs import ContextConfig, InjectionConfig
from app.engine.equipment import Equipment, Meter
from tests.support.models import WrittenModel

FRIDAY = Equipment(
    name="Friday",
    system_prompt="12345678",
    model=WrittenModel([]),
    tools={},
    injection=InjectionConfig(),
    context=ContextConfig(),
    max_iters=1,
    tool_timeout=timedelta(seconds=1),
)


def test_a_conversation_that_grows_is_counted_as_if_anew() -> None:
    meter = Meter()
    context: list[Msg] = []
    for at in range(4):
        context.append(UserMsg("user", "1234" * at))
        context.append(AssistantMsg("Friday", []))
        for _ in range(3):
            context[-1].content.append(TextBlock(text="12345678"))

            assert meter.count(FRIDAY, "1234", context) == Meter().count(FRIDAY, "1234", context)


def test_another_conversation_is_counted_for_itself() -> None:
    meter = Meter()
    long = [UserMsg("user", "1234") for _ in range(9)]
    for context in (long, [*long[:3], UserMsg("user", "12345678"), *long], long[:2], []):
        assert meter.count(FRIDAY, "", context) == Meter().count(FRIDAY, "", context)


def test_messages_with_the_same_id_are_counted_each() -> None:
    twice = [Msg(name="Friday", role="assistant", id="r", content=[TextBlock(text="1234" * at)])
             for at in (1, 2, 3)]  # fmt: skip

    assert Meter().count(FRIDAY, "", twice) == 2 + 1 + 2 + 3
