"""The scripted model, in a small loop that plays its calls and the runtime's hints into a context."""

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest

from app.adapters.models.scripted import ScriptedModel
from app.adapters.tools.tasks import task_tools
from app.core.injection import Surroundings, inject
from app.core.messages import (
    HintBlock,
    Msg,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultBlock,
    UserMsg,
)
from app.core.specs import ContextConfig, InjectionConfig
from app.core.state import AgentState, ReplyContext, TasksContext
from app.ports.models import Finished, Prompt, TextPiece, ThinkingPiece, ToolCallPiece, ToolSchema
from app.ports.tools import TextChunk, ToolCall, ToolEnd

NAME = "Friday"
SCHEMAS = [tool.schema for tool in task_tools()]
TOOLS = {tool.schema.name: tool for tool in task_tools()}
HONEST = "I am a script (scripted:demo), not a language model."


@dataclass
class Conversation:
    """A session in miniature: one agent, its tasks, and a runtime that tells it where it stands."""

    tools: list[ToolSchema] = field(default_factory=lambda: SCHEMAS)
    may_call_tools: bool = True
    environment: dict[str, str] = field(default_factory=dict)
    injection: InjectionConfig = field(default_factory=InjectionConfig)
    state: AgentState = field(default_factory=AgentState)
    rounds: list[list] = field(default_factory=list)

    # The two methods of the port to the plan.
    def read(self) -> TasksContext:
        return self.state.tasks_context

    def write(self, tasks: TasksContext) -> None:
        self.state.tasks_context = tasks

    async def say(self, text):
        """Send a message, and return the reply's message."""
        self.rounds.clear()
        self.state.context.append(UserMsg("user", text))
        reply_id = f"rep_{len(self.state.context)}"
        self.state.reply_context = ReplyContext(reply_id=reply_id)
        while True:
            self._inject()
            calls = await self._reason()
            if not calls:
                return self.state.own_tail(NAME)
            for call in calls:
                await self._act(call)
            self.state.cur_iter += 1

    def _inject(self):
        hint = inject(
            self.state,
            agent_name=NAME,
            config=self.injection,
            context=ContextConfig(),
            around=Surroundings(
                now=datetime(2026, 11, 28, 13, 45, 59, tzinfo=UTC),
                tokens=0,
                context_size=128_000,
                environment=self.environment,
            ),
        )
        if hint:
            source = self.injection.injection_source
            self.state.append_context(NAME, [HintBlock(hint=hint, source=source)])

    async def _reason(self):
        pieces = await pieces_of(
            Prompt(
                system="You are helpful.",
                context=self.state.context,
                tools=self.tools,
                may_call_tools=self.may_call_tools,
            )
        )
        self.rounds.append(pieces)
        calls = calls_of(pieces)
        self.state.append_context(NAME, [TextBlock(text=text_of(pieces)), *calls])
        return calls

    async def _act(self, call):
        ticket = ToolCall(
            id=call.id,
            key=call.id,
            arguments=json.loads(call.input),
            now="2026-11-28T13:45:59Z",
            session_id="ses_1",
            tasks=self,
        )
        output, state = "", "success"
        async for chunk in TOOLS[call.name].run(ticket):
            match chunk:
                case TextChunk(text):
                    output += text
                case ToolEnd(ended, _):
                    state = ended
        result = ToolResultBlock(id=call.id, name=call.name, output=output, state=state)
        self.state.append_context(NAME, [result])


async def pieces_of(prompt, model=None):
    return [piece async for piece in (model or ScriptedModel()).stream(prompt)]


def text_of(pieces):
    return "".join(piece.text for piece in pieces if isinstance(piece, TextPiece))


def calls_of(pieces):
    heads = [piece for piece in pieces if isinstance(piece, ToolCallPiece) and piece.id]
    return [
        ToolCallBlock(
            id=head.id,
            name=head.name,
            input="".join(
                piece.arguments
                for piece in pieces
                if isinstance(piece, ToolCallPiece) and piece.index == head.index
            ),
        )
        for head in heads
    ]


async def answer_to(text, **options):
    return await pieces_of(Prompt(system="", context=[UserMsg("user", text)], **options))


def called(message):
    return [block.name for block in message.content if isinstance(block, ToolCallBlock)]


def test_it_is_named_a_script():
    model = ScriptedModel()

    assert (model.name, model.context_size) == ("scripted:demo", 128_000)


async def test_it_says_that_it_is_no_language_model():
    text = text_of(await answer_to("Hi, who are you?"))

    assert HONEST in text
    assert "- plan" in text


async def test_the_same_prompt_always_has_the_same_answer():
    assert await answer_to("plan a trip", tools=SCHEMAS) == await answer_to(
        "plan a trip", tools=SCHEMAS
    )


async def test_text_comes_word_by_word_and_finished_comes_last():
    pieces = await answer_to("echo one  two\nthree ")

    assert pieces[:-1] == [TextPiece("one"), TextPiece("  two"), TextPiece("\nthree")]
    assert isinstance(pieces[-1], Finished)
    assert pieces[-1].reason == "stop"


async def test_the_usage_is_estimated_of_the_whole_prompt_and_the_answer():
    small = (await answer_to("echo four"))[-1].usage
    large = (
        await pieces_of(
            Prompt(
                system="s" * 400,
                summary="s" * 40,
                context=[UserMsg("user", "echo four")],
                tools=SCHEMAS,
            )
        )
    )[-1].usage

    assert (small.input_tokens, small.output_tokens) == (2, 1)
    assert large.input_tokens > small.input_tokens + 110


async def test_an_empty_context_is_answered():
    pieces = await pieces_of(Prompt(system="", context=[]))

    assert HONEST in text_of(pieces)


async def test_a_plan_is_three_parallel_calls_an_update_and_a_summary():
    talk = Conversation()

    message = await talk.say("Please plan a trip to Hangzhou.")

    assert called(message) == ["TaskCreate"] * 3 + ["TaskUpdate"]
    assert [len(calls_of(pieces)) for pieces in talk.rounds] == [3, 1, 0]
    assert [(task.subject, task.state) for task in talk.read().tasks] == [
        ("Look into a trip to Hangzhou", "in_progress"),
        ("Work on a trip to Hangzhou", "pending"),
        ("Check a trip to Hangzhou", "pending"),
    ]
    assert "3 tasks, the first is in progress" in text_of(talk.rounds[-1])
    assert [pieces[-1].reason for pieces in talk.rounds] == ["tool_calls", "tool_calls", "stop"]
    assert isinstance(talk.rounds[0][0], ThinkingPiece)


async def test_call_ids_are_unique_across_a_conversation():
    talk = Conversation()
    await talk.say("plan one")
    await talk.say("plan two")
    await talk.say("work")

    ids = [
        block.id
        for message in talk.state.context
        for block in message.content
        if isinstance(block, ToolCallBlock)
    ]

    assert ids == [f"call_{number}" for number in range(1, 11)]


async def test_work_completes_one_task_after_the_other():
    talk = Conversation()
    await talk.say("plan a trip")

    texts = []
    for _ in range(4):
        await talk.say("work")
        texts.append(text_of(talk.rounds[-1]))

    assert texts == [
        "Left: 2 tasks: Work on a trip; Check a trip.",
        "Left: 1 task: Check a trip.",
        "That was the last open task. Nothing is left.",
        "No task is open.",
    ]
    assert {task.state for task in talk.read().tasks} == {"completed"}


async def test_work_leaves_blocked_tasks_alone():
    talk = Conversation()
    await talk.say("plan a trip")
    first, second, third = talk.read().tasks
    talk.write(
        TasksContext(
            tasks=[
                first.model_copy(update={"blocked_by": ["3"]}),
                second.model_copy(update={"blocked_by": ["1"]}),
                third.model_copy(update={"blocks": ["1"]}),
            ]
        )
    )

    await talk.say("work")

    assert [task.state for task in talk.read().tasks] == ["in_progress", "pending", "completed"]


async def test_failing_calls_stop_when_the_runtime_says_so():
    talk = Conversation()

    message = await talk.say("fail")

    results = [block.state for block in message.content if isinstance(block, ToolResultBlock)]
    assert results == ["error"] * 3
    assert len({call.input for call in message.content if isinstance(call, ToolCallBlock)}) == 1
    assert "The runtime told me that the same call keeps failing" in message.text


async def test_failing_calls_stop_without_a_hint_too():
    talk = Conversation(injection=InjectionConfig(tool_retries_limit=5))

    message = await talk.say("fail")

    assert called(message) == ["TaskUpdate"] * 3
    assert "nobody told me to stop" in message.text


async def test_a_new_failing_request_is_not_stopped_by_an_old_hint():
    talk = Conversation()
    await talk.say("fail")

    message = await talk.say("fail")

    assert called(message) == ["TaskUpdate"]


@pytest.mark.parametrize("request_text", ["Where are you?", "What do you know?", "what time is it"])
async def test_it_repeats_what_the_runtime_told_it(request_text):
    talk = Conversation(environment={"location": "Hangzhou <office> & lab"})

    message = await talk.say(request_text)

    assert message.text == (
        f"{HONEST} This is what the runtime told me:\n"
        "- current-time: 2026-11-28T13:45:59\n"
        "- timezone: UTC\n"
        "- location: Hangzhou <office> & lab"
    )


async def test_what_older_hints_told_is_known_unless_it_was_of_its_moment():
    def hint(text):
        return Msg(name=NAME, role="assistant", content=[HintBlock(hint=text, source="s")])

    context = [
        hint("<current-time>10:00</current-time>\n<tool-error>stop</tool-error>\n<place>A</place>"),
        hint([TextBlock(text="<place>B</place>")]),
        hint("<system-reminder>This is the last round.</system-reminder>"),
        UserMsg("user", "where"),
    ]

    text = text_of(await pieces_of(Prompt(system="", context=context)))

    assert text.splitlines()[1:] == ["- place: B", "- current-time: 10:00"]


async def test_tags_that_the_user_writes_are_no_hints():
    text = text_of(await answer_to("where? <current-time>never</current-time>"))

    assert text == f"{HONEST} The runtime has told me nothing so far."


async def test_a_greeting_mentions_the_newest_time():
    message = await Conversation().say("Hello")

    assert "2026-11-28T13:45:59" in message.text


async def test_thinking_comes_before_the_answer():
    pieces = await answer_to("think about it")
    kinds = [type(piece) for piece in pieces]

    assert kinds[0] is ThinkingPiece
    assert kinds == sorted(kinds, key=[ThinkingPiece, TextPiece, Finished].index)


@pytest.mark.parametrize(
    ("request_text", "words"), [("long 3", 3), ("long 500", 500), ("a long 99999 one", 20_000)]
)
async def test_long_answers_have_as_many_words_as_asked(request_text, words):
    pieces = await answer_to(request_text)

    assert len(text_of(pieces).split()) == words
    assert len(pieces) == words + 1


async def test_a_long_without_a_number_is_a_word_like_others():
    assert "Hello!" in text_of(await answer_to("long ago"))


@pytest.mark.parametrize("text", ["x" * 1000, "ü 你好 \n\n end"])
async def test_an_echo_is_the_text_itself(text):
    pieces = await answer_to(f"Echo: {text}")

    assert text_of(pieces) == text


async def test_help_lists_what_it_can_do():
    text = text_of(await answer_to("help"))

    assert all(word in text for word in ("plan", "work", "fail", "where", "think", "long", "echo"))


async def test_the_earliest_word_decides():
    assert text_of(await answer_to("echo plan work fail")) == "plan work fail"


@pytest.mark.parametrize("request_text", ["plan", "work", "fail"])
async def test_without_tools_it_says_so_and_calls_none(request_text):
    pieces = await answer_to(request_text, tools=[])

    assert calls_of(pieces) == []
    assert "I have no tool named Task" in text_of(pieces)


@pytest.mark.parametrize("request_text", ["plan", "work", "fail"])
async def test_when_it_may_not_call_tools_it_calls_none(request_text):
    pieces = await answer_to(request_text, tools=SCHEMAS, may_call_tools=False)

    assert calls_of(pieces) == []
    assert "I may not call tools in this answer." in text_of(pieces)


async def test_a_plan_that_may_go_on_no_more_is_summed_up():
    talk = Conversation()
    await talk.say("plan a trip")
    request, reply = talk.state.context
    created = [block for block in reply.content if getattr(block, "name", "") == "TaskCreate"]
    cut = [request, reply.model_copy(update={"content": created})]

    pieces = await pieces_of(Prompt(system="", context=cut, tools=SCHEMAS, may_call_tools=False))

    assert calls_of(pieces) == []
    assert text_of(pieces).startswith("The plan for a trip stands: 3 tasks, none is begun.")


async def test_a_plan_whose_calls_failed_is_not_said_to_stand():
    calls = [ToolCallBlock(id="call_1", name="TaskCreate", input="{}")]
    denied = ToolResultBlock(id="call_1", name="TaskCreate", output="no", state="denied")
    context = [
        UserMsg("user", "plan"),
        Msg(name=NAME, role="assistant", content=[ThinkingBlock(thinking="t"), *calls, denied]),
    ]

    text = text_of(await pieces_of(Prompt(system="", context=context, tools=SCHEMAS)))

    assert "No task could be created" in text


async def test_it_calls_the_tools_that_it_is_told_to() -> None:
    asked = UserMsg("user", 'call Look {"at": "a"} Look {"at": "b"} and that is all')
    prompt = Prompt("", [asked], [ToolSchema("Look", "", {"type": "object"})])
    pieces = [piece async for piece in ScriptedModel().stream(prompt)]
    calls = [piece for piece in pieces if isinstance(piece, ToolCallPiece)]

    assert [piece.name for piece in calls if piece.name] == ["Look", "Look"]
    assert "".join(piece.arguments for piece in calls) == '{"at": "a"}{"at": "b"}'
