"""The wire is real: a server in the test's own process."""

import asyncio
import json
from contextlib import asynccontextmanager
from itertools import pairwise

import aiohttp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.adapters.models.openai import OpenAIModel
from app.adapters.models.openai_answer import Answer
from app.adapters.models.openai_messages import NO_OUTPUT
from app.adapters.models.retrying import RetryingModel
from app.core.errors import ModelError
from app.core.messages import (
    AssistantMsg,
    Base64Source,
    DataBlock,
    HintBlock,
    Msg,
    SystemMsg,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultBlock,
    URLSource,
    Usage,
    UserMsg,
)
from app.core.repair import LOST_RESULT
from app.core.specs import ModelSpec
from app.ports.models import (
    Finished,
    Piece,
    Prompt,
    Restarted,
    TextPiece,
    ThinkingPiece,
    ToolCallPiece,
    ToolSchema,
)
from tests.support.model_server import model_server

KEY = "sk-secret-0123456789"
HI = Prompt(system="SYS", context=[UserMsg("user", "hi")])
USAGE = Usage(input_tokens=10, output_tokens=5)
COUNTED = {
    "id": "c1",
    "choices": [],
    "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
}
DONE = {"_done": True}
CUT = {"_cut": True}
READ = ToolSchema("read_file", "Reads.", {"type": "object", "properties": {}})
WRITE = ToolSchema("write_file", "Writes.", {"type": "object", "properties": {}})


def chunk(delta, finish=None, **more):
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {
        "id": "c1",
        "object": "chat.completion.chunk",
        "model": "fake",
        "choices": [choice],
        **more,
    }


def calls(*deltas, finish=None):
    return chunk({"tool_calls": list(deltas)}, finish)


def call(arguments, *, id_=None, name=None, **index):
    function = {"arguments": arguments} | ({"name": name} if name else {})
    return {**index, **({"id": id_, "type": "function"} if id_ else {}), "function": function}


def end(reason="stop"):
    return [chunk({}, reason), COUNTED, DONE]


def spoken(text, reason="stop"):
    return [chunk({"role": "assistant", "content": text}), *end(reason)]


def refusal(status, body="", **headers):
    text = body if isinstance(body, str | bytes) else json.dumps(body)
    return [{"_http": {"status": status, "body": text, "headers": headers}}]


def complaint(message, **more):
    return {"error": {"message": message, **more}}


@asynccontextmanager
async def asking(*turns, silence_seconds=5.0, key=KEY, **spec):
    async with model_server(*turns) as server, client(sock_read=silence_seconds) as session:
        model = OpenAIModel(
            ModelSpec(provider="openai", **{"name": "fake", **spec}),
            client=session,
            base_url=server.base_url,
            api_key=key,
        )
        yield model, server


def client(**limits) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None, **limits))


async def heard(model, prompt=HI) -> list[Piece]:
    return [piece async for piece in model.stream(prompt)]


async def answers(*turn, prompt=HI, **options) -> list[Piece]:
    async with asking(turn, **options) as (model, _):
        return await heard(model, prompt)


async def fails(*turn, prompt=HI, **options) -> ModelError:
    async with asking(turn, **options) as (model, _):
        with pytest.raises(ModelError) as caught:
            await heard(model, prompt)
    return caught.value


async def asked(prompt, **options) -> dict:
    async with asking(spoken("ok"), **options) as (model, server):
        await heard(model, prompt)
        return server.requests[0]


async def messages(*context, tools=(), **options) -> list[dict]:
    return (await asked(Prompt(system="", context=context, tools=tools), **options))["messages"]


def said(pieces) -> str:
    return "".join(piece.text for piece in pieces if isinstance(piece, TextPiece))


def text_of_piece(piece) -> str:
    return piece.arguments if isinstance(piece, ToolCallPiece) else piece.text


def made(pieces) -> list[tuple[str, str, str]]:
    """Join the calls of an answer as the engine does: by index, id and name from the first piece."""
    joined: dict[int, list[str]] = {}
    for piece in pieces:
        if isinstance(piece, ToolCallPiece):
            if piece.index in joined:
                assert (piece.id, piece.name) == ("", "")
            joined.setdefault(piece.index, [piece.id, piece.name, ""])[2] += piece.arguments
    assert list(joined) == list(range(len(joined)))
    return [(id_, name, arguments) for id_, name, arguments in joined.values()]


def assistant(*blocks) -> Msg:
    return AssistantMsg("Friday", list(blocks))


def text(value) -> TextBlock:
    return TextBlock(text=value)


def a_call(id_="c1", name="Bash", input_="{}") -> ToolCallBlock:
    return ToolCallBlock(id=id_, name=name, input=input_, state="finished")


def a_result(id_="c1", name="Bash", output="out") -> ToolResultBlock:
    return ToolResultBlock(id=id_, name=name, output=output, state="success")


def thought(value, **extra) -> ThinkingBlock:
    return ThinkingBlock(thinking=value, **extra)


# What is asked


async def test_a_request_says_all_that_the_spec_and_the_prompt_say():
    async with asking(spoken("ok"), max_output_tokens=99, parameters={"temperature": 0.5}) as (
        model,
        server,
    ):
        await heard(model, Prompt("SYS", [UserMsg("user", "hi")], [READ], summary="before"))

    assert server.paths == ["/v1/chat/completions"]
    assert server.headers[0]["authorization"] == f"Bearer {KEY}"
    assert server.headers[0]["content-type"] == "application/json"
    assert server.requests[0] == {
        "model": "fake",
        "messages": [
            {"role": "system", "content": "SYS"},
            {"role": "user", "content": "before"},
            {"role": "user", "content": "hi"},
        ],
        "stream": True,
        "stream_options": {"include_usage": True},
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "read_file",
                    "description": "Reads.",
                    "parameters": {"type": "object", "properties": {}},
                },
            }
        ],
        "max_tokens": 99,
        "temperature": 0.5,
    }


async def test_it_has_the_name_and_the_window_of_its_spec():
    async with asking(context_size=77) as (model, _):
        assert (model.name, model.context_size) == ("fake", 77)


async def test_no_key_sends_no_authorization():
    async with asking(spoken("ok"), key=None) as (model, server):
        await heard(model)

    assert "authorization" not in server.headers[0]


async def test_a_key_with_its_line_break_is_still_a_key():
    async with asking(spoken("ok"), key=f"{KEY}\n") as (model, server):
        await heard(model)

    assert server.headers[0]["authorization"] == f"Bearer {KEY}"


async def test_a_key_that_fits_no_header_is_refused_and_not_shown():
    error = await fails(key="sk-ключ-тайна")

    assert error.info.type == "setup"
    assert "тайна" not in str(error)
    assert error.__cause__ is None


async def test_the_query_of_an_address_stays_behind_the_path():
    async with asking(spoken("ok")) as (_, server), client() as session:
        base_url = f"{server.base_url}/?api-version=2026-01-01"
        spec = ModelSpec(provider="azure", name="fake")
        await heard(OpenAIModel(spec, client=session, base_url=base_url, api_key=None))

    assert server.paths == ["/v1/chat/completions?api-version=2026-01-01"]


async def test_a_proxy_is_asked_where_there_is_one():
    async with model_server(spoken("ok")) as proxy, client() as session:
        model = OpenAIModel(
            ModelSpec(provider="openai", name="fake"),
            client=session,
            base_url="http://nowhere.invalid/v1",
            api_key=None,
            proxy=proxy.base_url.removesuffix("/v1"),
        )

        assert said(await heard(model)) == "ok"
        assert proxy.headers[0]["host"] == "nowhere.invalid"


async def test_equal_prompts_give_equal_bytes():
    one, two = {"top_p": 1, "seed": 7}, {"seed": 7, "top_p": 1}
    bodies = []
    for parameters in (one, two):
        async with asking(spoken("ok"), parameters=parameters) as (model, server):
            await heard(model)
        bodies += server.bodies

    assert bodies[0] == bodies[1]


async def test_parameters_cannot_take_over_the_request():
    body = await asked(
        HI,
        parameters={
            "model": "x",
            "messages": [],
            "stream": False,
            "tools": [],
            "tool_choice": "auto",
        },
    )

    assert (body["model"], body["stream"]) == ("fake", True)
    assert body["messages"][-1] == {"role": "user", "content": "hi"}
    assert not {"tools", "tool_choice"} & set(body)


async def test_a_null_parameter_drops_a_field_that_a_server_refuses():
    body = await asked(HI, parameters={"stream_options": None})

    assert "stream_options" not in body


async def test_a_limit_among_the_parameters_is_the_only_one():
    body = await asked(HI, max_output_tokens=5, parameters={"max_completion_tokens": 9})

    assert body["max_completion_tokens"] == 9
    assert "max_tokens" not in body


async def test_tools_that_may_not_be_called_still_go_along():
    prompt = Prompt("", [UserMsg("user", "hi")], [WRITE, READ], may_call_tools=False)
    body = await asked(prompt, parameters={"tool_choice": "required"})

    assert [tool["function"]["name"] for tool in body["tools"]] == ["write_file", "read_file"]
    assert body["tool_choice"] == "none"


async def test_what_json_cannot_hold_in_a_foreign_schema_stops_nothing():
    schema = ToolSchema("t", "half \ud83d", {"maximum": 10**30})
    body = await asked(Prompt("", [UserMsg("user", "hi")], [schema]))

    assert body["tools"][0]["function"]["description"] == "half \ufffd"
    assert body["tools"][0]["function"]["parameters"] == {"maximum": 10**30}


@pytest.mark.parametrize(
    ("host", "field"),
    [
        ("https://api.openai.com/v1", "max_completion_tokens"),
        ("https://me.openai.azure.com/openai/v1", "max_completion_tokens"),
        ("https://notopenai.com/v1", "max_tokens"),
    ],
)
async def test_the_limit_has_the_name_that_its_host_knows(host, field):
    seen = await sent_to(host, HI, max_output_tokens=7)

    assert seen[field] == 7


class NoNetwork:
    """A client that reaches nobody, and keeps what it was to send."""

    def __init__(self):
        self.bodies = []

    async def post(self, url, *, data, **options):
        self.bodies.append(json.loads(data))
        raise aiohttp.ClientConnectionError


async def sent_to(base_url, prompt, **spec) -> dict:
    """Return what a host is asked that cannot be reached from a test."""
    network = NoNetwork()
    model = OpenAIModel(
        ModelSpec(provider="openai", name="fake", **spec),
        client=network,
        base_url=base_url,
        api_key=None,
    )
    with pytest.raises(ModelError):
        await heard(model, prompt)
    return network.bodies[0]


# How a conversation is written


async def test_an_assistant_message_is_split_at_results_and_hints_as_agentscope_does():
    written = await messages(
        SystemMsg("system", "SYS"),
        UserMsg("user", "Q1"),
        assistant(
            HintBlock(hint="<system-reminder>H1</system-reminder>"),
            thought("TH"),
            text("T1"),
            a_call(input_='{"command": "ls"}'),
            a_result(output="boom"),
            HintBlock(hint=[text("H2a"), text("H2b")]),
            text("T2"),
            HintBlock(hint=""),
        ),
        UserMsg("user", "Q2"),
    )

    assert written == [
        {"role": "system", "content": "SYS"},
        {"role": "user", "content": "Q1"},
        {"role": "user", "content": "<system-reminder>H1</system-reminder>"},
        {
            "role": "assistant",
            "content": "T1",
            "tool_calls": [
                {
                    "id": "c1",
                    "type": "function",
                    "function": {"name": "Bash", "arguments": '{"command": "ls"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "boom", "name": "Bash"},
        {"role": "user", "content": "H2a\nH2b"},
        {"role": "assistant", "content": "T2"},
        {"role": "user", "content": "Q2"},
    ]


async def test_parallel_calls_are_one_message_and_rounds_are_several():
    written = await messages(
        assistant(
            a_call("1"), a_call("2"), a_result("1"), a_result("2"), a_call("3"), a_result("3")
        )
    )

    assert [len(message.get("tool_calls", [])) for message in written] == [2, 0, 0, 1, 0]
    assert [message.get("tool_call_id") for message in written] == [None, "1", "2", None, "3"]


async def test_rc_037_text_behind_a_call_joins_its_message_and_parts_it_from_no_result():
    written = await messages(
        assistant(text("Let me look. "), a_call(), text("after"), a_result(), text("end"))
    )

    assert [message["role"] for message in written] == ["assistant", "tool", "assistant"]
    assert written[0]["content"] == "Let me look. \nafter"
    assert written[1]["content"] == "out"


async def test_a_call_without_a_result_gets_one():
    written = await messages(assistant(a_call("1"), a_call("2"), a_result("2")), UserMsg("u", "q"))

    assert [message["role"] for message in written] == ["assistant", "tool", "tool", "user"]
    assert written[2]["content"] == LOST_RESULT


@pytest.mark.parametrize(
    ("blocks", "expected"),
    [
        # The first call is lost, and a second round follows.
        (
            [a_call("1"), a_call("2"), a_result("2"), a_call("3"), a_result("3")],
            [("1", "2"), "2", "1", ("3",), "3"],
        ),
        # A result comes after the next round has begun.
        (
            [a_call("1"), a_call("2"), a_result("1"), a_call("3"), a_result("2"), a_result("3")],
            [("1", "2"), "1", "2", ("3",), "3"],
        ),
        # Text and hints stand between two results.
        (
            [a_call("1"), a_call("2"), a_result("1"), text("t"), a_result("2")],
            [("1", "2"), "1", "2", ()],
        ),
        (
            [a_call("1"), a_call("2"), a_result("1"), HintBlock(hint="h"), a_result("2")],
            [("1", "2"), "1", "2", "h"],
        ),
        ([a_call("1"), HintBlock(hint="h"), a_result("1")], [("1",), "1", "h"]),
        # Results without a call, or of one that has its result, are dropped.
        ([a_result("0"), a_call("1"), a_result("1"), a_result("1")], [("1",), "1"]),
        # An id comes twice, and the first call is lost.
        (
            [a_call("1"), a_call("2"), a_result("2"), a_call("1"), text("t"), a_result("1")],
            [("1", "2"), "2", "1", ("1",), "1"],
        ),
    ],
)
async def test_all_results_of_a_message_follow_it_at_once(blocks, expected):
    written = await messages(assistant(*blocks))

    assert [
        tuple(each["id"] for each in message.get("tool_calls", ()))
        if message["role"] == "assistant"
        else message.get("tool_call_id", message["content"])
        for message in written
    ] == expected


async def test_rc_055_blank_text_thoughts_alone_and_silent_tools_are_never_sent_empty():
    written = await messages(
        UserMsg("user", [text(" "), text("hi")]),
        UserMsg("user", "  \n"),
        assistant(thought("hm")),
        assistant(a_call(), a_result(output=[])),
        assistant(text("  \n")),
        assistant(HintBlock(hint=[text("")])),
    )

    assert [message["role"] for message in written] == ["user", "assistant", "tool"]
    assert written[0]["content"] == "hi"
    assert written[1]["content"] is None
    assert written[2]["content"] == NO_OUTPUT


@pytest.mark.parametrize(
    "written",
    [
        '{"id":2512292042121000001}',
        '{"a": 1e999,  "b":"\\ud83e\\udde9"}',
        '{"n":' + "1" * 5000 + "}",
        "{}",
    ],
)
async def test_rc_015_arguments_go_back_byte_for_byte(written):
    sent = await messages(assistant(a_call(input_=written), a_result()))

    assert sent[0]["tool_calls"][0]["function"]["arguments"] == written


@pytest.mark.parametrize(
    "written",
    [
        "",
        "null",
        "[1]",
        '"text"',
        '{"path":"/a","content":"hel',
        '{"score":NaN}',
        '{"a":1}}',
        '{"a":"\\ud83d"}',
        "[" * 100_000,
        '{"a":' * 100_000,
    ],
)
async def test_rc_012_and_rc_022_arguments_that_are_no_object_go_back_as_an_empty_one(written):
    sent = await messages(assistant(a_call(input_=written), a_result()))

    assert sent[0]["tool_calls"][0]["function"]["arguments"] == "{}"


async def test_a_name_that_a_model_made_up_is_written_so_that_providers_take_it():
    written = await messages(
        assistant(a_call(name="functions.read file"), a_result(name="functions.read file"))
    )

    assert written[0]["tool_calls"][0]["function"]["name"] == "functions_read_file"
    assert written[1]["name"] == "functions_read_file"


async def test_a_name_that_is_offered_is_written_as_it_is():
    dotted = ToolSchema("mcp.read", "", {"type": "object"})
    written = await messages(assistant(a_call(name="mcp.read"), a_result()), tools=[dotted])

    assert written[0]["tool_calls"][0]["function"]["name"] == "mcp.read"


CAT = DataBlock(source=Base64Source(data="QUJD", media_type="image/png"), name="cat.png")
DOG = DataBlock(source=URLSource(url="https://x.org/dog.jpg", media_type="image/jpeg"))


async def test_images_are_shown_to_models_that_take_them():
    written = await messages(
        UserMsg("user", [text("look"), CAT, DOG]), input_types=["text", "image"]
    )

    assert written == [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "look"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}},
                {"type": "image_url", "image_url": {"url": "https://x.org/dog.jpg"}},
            ],
        }
    ]


async def test_images_are_mentioned_to_models_that_take_none():
    written = await messages(UserMsg("user", [text("look"), CAT]))

    assert written == [
        {
            "role": "user",
            "content": "look\n[A file of type image/png named 'cat.png', which cannot be shown here.]",
        }
    ]


@pytest.mark.parametrize(
    "source",
    [
        URLSource(url="file:///etc/passwd", media_type="image/png"),
        Base64Source(data="QUJD", media_type="audio/wav"),
    ],
)
async def test_other_media_and_addresses_of_this_machine_are_only_mentioned(source):
    written = await messages(
        UserMsg("user", [DataBlock(source=source)]), input_types=["text", "image"]
    )

    assert "cannot be shown" in written[0]["content"]


async def test_a_tools_image_is_mentioned_in_its_result():
    written = await messages(
        assistant(a_call(), a_result(output=[text("done"), CAT])), input_types=["text", "image"]
    )

    assert written[1]["content"].startswith("done\n[A file of type image/png")


async def test_rc_054_thoughts_go_back_with_calls_under_the_name_they_came_by():
    written = await messages(
        assistant(
            thought("why", reasoning_field="reasoning_content"),
            a_call("1"),
            a_result("1"),
            a_call("2"),
            a_result("2"),
            thought("so", reasoning_field="reasoning_content"),
            text("done"),
        )
    )

    assert [message.get("reasoning_content") for message in written] == [
        "why",
        None,
        "",
        None,
        None,
    ]


async def test_thoughts_of_other_providers_teach_no_field():
    written = await messages(
        assistant(
            thought("why", signature="s", reasoning_field="content"),
            thought("why", reasoning_field=["reasoning"]),
            a_call(),
            a_result(),
        )
    )

    assert set(written[0]) == {"role", "content", "tool_calls"}


@pytest.mark.parametrize(
    ("host", "field"),
    [("https://api.deepseek.com", ""), ("https://api.moonshot.cn/v1", ""), ("https://x.org", None)],
)
async def test_rc_054_hosts_that_demand_thoughts_get_them_from_the_first_call_on(host, field):
    body = await sent_to(host, Prompt("", [assistant(a_call(), a_result())]))

    assert body["messages"][0].get("reasoning_content") == field


async def test_hosts_that_refuse_unknown_fields_get_no_thoughts():
    blocks = (thought("why", reasoning_field="reasoning_content"), a_call(), a_result())
    body = await sent_to("https://api.openai.com/v1", Prompt("", [assistant(*blocks)]))

    assert set(body["messages"][0]) == {"role", "content", "tool_calls"}


@st.composite
def rounds(draw):
    """One answer of a model and what came of it: calls with results, or text that ends the reply."""
    blocks = []
    if draw(st.booleans()):
        extra = draw(st.sampled_from([{}, {"reasoning_field": "reasoning_content"}]))
        blocks.append(thought("th", **extra))
    texts = st.sampled_from(["", " ", "text", "\U0001f9e9"])
    blocks.append(text(draw(texts)))
    ids = draw(st.lists(st.sampled_from("abc"), max_size=3, unique=True))
    inputs = st.sampled_from(["", "{}", '{"a": 1}', '{"a'])
    for id_ in ids:
        blocks.append(a_call(id_, input_=draw(inputs)))
        blocks.append(text(draw(texts)))
    blocks += [a_result(id_, output=draw(texts)) for id_ in draw(st.permutations(ids))]
    hints = draw(st.lists(st.sampled_from(["", "hint"]), max_size=2))
    return blocks, [HintBlock(hint=hint) for hint in hints], not ids


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(story=st.lists(rounds(), min_size=1, max_size=8))
async def test_each_request_of_a_session_begins_with_the_whole_of_the_one_before(story):
    context: list[Msg] = []
    prompts = []
    answering = False
    for blocks, hints, ends in story:
        if not answering:
            context.append(UserMsg("user", "q"))
            context.append(assistant(*hints))
        prompts.append(Prompt("SYS", [*context]))
        grown = [*context[-1].content, *blocks, *(hints if not ends else [])]
        context[-1] = assistant(*grown)
        answering = not ends
    prompts.append(Prompt("SYS", context))
    written = [(await sent_to("https://x.org", prompt))["messages"] for prompt in prompts]

    for before, after in pairwise(written):
        assert after[: len(before)] == before


# What is heard


async def test_an_answer_comes_in_pieces_and_ends_with_what_it_cost():
    pieces = await answers(
        chunk({"role": "assistant", "content": ""}),
        chunk({"content": "Hel"}),
        chunk({"content": "lo"}),
        *end(),
    )

    assert said(pieces) == "Hello"
    assert pieces[-1] == Finished(USAGE, "stop")


def test_what_comes_together_is_one_piece_for_each_kind_in_a_row():
    lines = [
        f"data: {json.dumps(each)}".encode()
        for each in [
            chunk({"reasoning_content": "let "}),
            chunk({"reasoning_content": "me"}),
            chunk({"thinking": "see"}),
            chunk({"content": "Hel"}),
            chunk({"content": "lo \ud83e"}),
            chunk({"content": "\udde9"}),
            calls(call("", id_="a", name="f", index=0)),
            calls(call("{", index=0)),
            calls(call("}", index=0)),
            calls(call("{}", id_="b", name="g", index=1)),
        ]
    ]
    together, alone = Answer(secret=""), Answer(secret="")

    assert list(together.read(lines)) == [
        ThinkingPiece("let me", {"reasoning_field": "reasoning_content"}),
        ThinkingPiece("see"),
        TextPiece("Hello 🧩"),
        ToolCallPiece(0, "a", "f", "{}"),
        ToolCallPiece(1, "b", "g", "{}"),
    ]
    assert [text_of_piece(piece) for line in lines for piece in alone.read([line])] == [
        "let ", "me", "see", "Hel", "lo ", "🧩", "", "{", "}", "{}",
    ]  # fmt: skip


def test_what_came_before_a_bad_line_was_said():
    pieces = Answer(secret="").read([f"data: {json.dumps(chunk({'content': 'a'}))}".encode(), b"{"])

    assert next(pieces) == TextPiece("a")
    with pytest.raises(ModelError):
        next(pieces)


async def test_a_connection_is_used_again():
    async with asking(spoken("a"), spoken("b")) as (model, server):
        heard_ = [said(await heard(model)), said(await heard(model))]

    assert heard_ == ["a", "b"]
    assert server.connections == 1


async def test_a_body_that_does_not_end_behind_done_holds_nobody_up():
    async with asyncio.timeout(3):
        pieces = await answers(*spoken("a"), {"_sleep": 60})

    assert said(pieces) == "a"


async def test_closing_the_generator_closes_the_connection_at_once():
    async with asking([chunk({"content": "a"}), {"_sleep": 60}]) as (model, server):
        pieces = model.stream(HI)
        await anext(pieces)
        await pieces.aclose()
        async with asyncio.timeout(2):
            await server.left.wait()


async def test_cancelling_the_reader_closes_the_connection_at_once():
    async with asking([chunk({"content": "a"}), {"_sleep": 60}]) as (model, server):
        reading = asyncio.create_task(heard(model))
        await asyncio.sleep(0.1)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        async with asyncio.timeout(2):
            await server.left.wait()


async def test_lines_may_end_and_be_cut_anywhere():
    """CRLF, comments, other fields, no space, and characters split between two packets."""
    event = f"data:{json.dumps(chunk({'content': 'żółw 🧩'}), ensure_ascii=False)}\r\n\r\n".encode()
    stream = b": ping\r\n\r\nevent: x\r\nid: 1\r\nretry: 5\r\n" + event + b"data: [DONE]"
    turn = [{"_raw": stream[at : at + 1]} for at in range(len(stream))]

    assert said(await answers(*turn)) == "żółw 🧩"


async def test_rc_007_a_surrogate_split_over_two_deltas_is_one_character():
    pieces = await answers(
        {
            "_raw": 'data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":'
            '{"content":"a\\ud83d"},"finish_reason":null}]}\n\n'
        },
        {
            "_raw": 'data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":'
            '{"content":"\\ude00b \\udcaf"},"finish_reason":"stop"}]}\n\n'
        },
        DONE,
    )

    assert said(pieces) == "a\U0001f600b \ufffd"
    assert all(piece.text.encode() for piece in pieces if isinstance(piece, TextPiece))


async def test_a_half_that_never_becomes_whole_is_replaced_where_it_stood():
    pieces = await answers(
        {"_raw": 'data: {"choices":[{"delta":{"reasoning":"t\\ud83d"}}]}\n\n'},
        {"_raw": 'data: {"choices":[{"delta":{"content":"a\\u0000\\ud83d"}}]}\n\n'},
        calls(call("{", index=0, id_="1", name="f")),
        {
            "_raw": 'data: {"choices":[{"delta":{"tool_calls":[{"index":0,"function":'
            '{"arguments":"\\ud83d"}}]}}]}\n\n'
        },
        *end("tool_calls"),
    )

    assert [
        getattr(piece, "text", "") or getattr(piece, "arguments", "") for piece in pieces[:-1]
    ] == ["t", "\ufffd", "a\ufffd", "\ufffd", "{", "\ufffd"]


async def test_bytes_that_are_no_utf8_are_replaced():
    pieces = await answers({"_raw": b'data: {"choices":[{"delta":{"content":"a\xff"}}]}\n\n'}, DONE)

    assert said(pieces) == "a\ufffd"


async def test_rc_047_chunks_without_choices_or_a_delta_are_passed_over():
    pieces = await answers(
        {
            "_raw": 'data: {"id":"","object":"","created":0,"model":"","prompt_annotations":'
            '[{"prompt_index":0}],"choices":[],"usage":null}\n\n'
        },
        chunk({"role": "assistant", "content": "hi"}),
        {"_raw": 'data: {"id":"c1","choices":[{"index":0,"delta":null,"finish_reason":null}]}\n\n'},
        {"_raw": ": OPENROUTER PROCESSING\n\n"},
        {"_raw": 'data: {"id":"c1"}\n\n'},
        {"_raw": 'data: {"id":"c1","choices":null}\n\n'},
        *end(),
    )

    assert pieces == [TextPiece("hi"), Finished(USAGE, "stop")]


async def test_only_the_first_candidate_speaks():
    other = {"choices": [{"index": 1, "delta": {"content": "no"}, "finish_reason": "length"}]}

    assert said(await answers(chunk({"content": "yes"}), other, *end())) == "yes"


async def test_rc_012_nan_in_arguments_is_text():
    pieces = await answers(
        calls(call('{"path":"/m.json","score":NaN}', index=0, id_="t1", name="write_file")),
        *end("tool_calls"),
    )

    assert made(pieces) == [("t1", "write_file", '{"path":"/m.json","score":NaN}')]
    assert pieces[-1] == Finished(USAGE, "tool_calls")


async def test_rc_015_a_long_integer_is_the_models_text():
    arguments = '{"path":"/id.txt","content":"q","id":2512292042121000001}'
    pieces = await answers(
        calls(call(arguments, index=0, id_="t1", name="write_file")), *end("tool_calls")
    )

    assert made(pieces) == [("t1", "write_file", arguments)]


@pytest.mark.parametrize(
    "arguments",
    [
        r'{"path":"/e.txt","content":"\ud83e\udde9 Check"}',
        r'{"path":"/e.txt","content":"\ud83c\udf78"}}',
    ],
)
async def test_rc_005_and_rc_006_an_escaped_pair_in_arguments_is_the_models_text(arguments):
    pieces = await answers(
        calls(call(arguments, index=0, id_="t1", name="write_file")), *end("tool_calls")
    )

    assert made(pieces) == [("t1", "write_file", arguments)]


async def test_rc_020_a_megabyte_of_arguments_in_20000_pieces_takes_no_square_of_the_time():
    """The name in every piece, no id, and pieces that look like an end: the slowest there is."""
    piece = f"data: {json.dumps(calls(call('x' * 49 + '}', index=0, name='write_file')))}\n\n"
    pieces = await answers({"_raw": piece * 20_000}, *end("tool_calls"))

    assert sum(len(each[2]) for each in made(pieces)) == 1_000_000


@pytest.mark.parametrize("arguments", ["", None])
async def test_rc_024_empty_and_null_arguments_are_no_text(arguments):
    pieces = await answers(
        calls(call(arguments, index=0, id_="t1", name="list_files"), finish="tool_calls"), DONE
    )

    assert made(pieces) == [("t1", "list_files", "")]


async def test_rc_026_one_id_at_two_indexes_is_two_calls():
    pieces = await answers(
        calls(call('{"path":"/a"}', index=0, id_="dup", name="read_file")),
        calls(call('{"path":"/b"}', index=1, id_="dup", name="read_file")),
        *end("tool_calls"),
    )

    assert made(pieces) == [
        ("dup", "read_file", '{"path":"/a"}'),
        ("dup", "read_file", '{"path":"/b"}'),
    ]


async def test_rc_027_ids_that_count_from_0_in_every_turn_keep_their_results_apart():
    first = calls(call('{"path":"/a"}', index=0, id_="call_0", name="read_file"))
    second = calls(call('{"path":"/b"}', index=0, id_="call_0", name="read_file"))
    async with asking([first, *end("tool_calls")], [second, *end("tool_calls")], spoken("ok")) as (
        model,
        server,
    ):
        heard_ = [made(await heard(model)), made(await heard(model))]
        blocks = [
            a_call("call_0", input_='{"path":"/a"}'),
            a_result("call_0", output="A"),
            a_call("call_0", input_='{"path":"/b"}'),
            a_result("call_0", output="B"),
        ]
        await heard(model, Prompt("", [assistant(*blocks)]))

    assert heard_ == [
        [("call_0", "read_file", '{"path":"/a"}')],
        [("call_0", "read_file", '{"path":"/b"}')],
    ]
    assert [each["content"] for each in server.requests[2]["messages"]] == [None, "A", None, "B"]


async def test_rc_030_every_call_at_index_0_is_told_apart_by_its_id():
    pieces = await answers(
        calls(call('{"path":"/a.rs"}', index=0, id_="a", name="read_file")),
        calls(call('{"path":"/b.rs"}', index=0, id_="b", name="read_file")),
        *end("tool_calls"),
    )

    assert made(pieces) == [
        ("a", "read_file", '{"path":"/a.rs"}'),
        ("b", "read_file", '{"path":"/b.rs"}'),
    ]


async def test_rc_031_a_piece_without_an_index_goes_on_with_the_last_call():
    pieces = await answers(
        {
            "_raw": 'data: {"choices":[{"index":0,"delta":{"tool_calls":[{"id":"a","function":'
            '{"name":"read_file","arguments":"{\\"path\\":"}}]}}]}\n\n'
        },
        {
            "_raw": 'data: {"choices":[{"index":0,"delta":{"tool_calls":[{"function":'
            '{"arguments":"\\"/a\\"}"}}]}}]}\n\n'
        },
        {"_raw": 'data: {"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}\n\n'},
        DONE,
    )

    assert made(pieces) == [("a", "read_file", '{"path":"/a"}')]


A, B = '{"n":1}', '{"n":2}'


@pytest.mark.parametrize(
    ("deltas", "expected"),
    [
        pytest.param(
            [call(A, id_="a", name="f"), call(B, id_="b", name="f")],
            [("a", "f", A), ("b", "f", B)],
            id="new ids without an index",
        ),
        pytest.param(
            [call(A, name="f"), call(B, name="f"), call(A, name="g")],
            [("", "f", A), ("", "f", B), ("", "g", A)],
            id="names alone",
        ),
        pytest.param(
            [call(A, name="f", index=0), call(B, name="f", index=0)],
            [("", "f", A), ("", "f", B)],
            id="names alone at index 0",
        ),
        pytest.param(
            [call(A[:4], id_="a", name="f", index=0), call(A[4:], id_="a", name="f", index=0)],
            [("a", "f", A)],
            id="id and name in every piece",
        ),
        pytest.param(
            [call(A[:4], name="f"), call(A[4:], name="f"), call("", name="f")],
            [("", "f", A)],
            id="the name in every piece",
        ),
        pytest.param(
            [
                call("", id_="a", name="f", index=0),
                call(A[:4], id_="x", index=0),
                call(A[4:], id_="y", index=0),
            ],
            [("a", "f", A)],
            id="a fresh id in every piece",
        ),
        pytest.param(
            [
                call(A[:4], id_="a", name="f", index=0),
                call(B[:4], id_="b", name="g", index=1),
                call(A[4:], index=0),
                call(B[4:], index=1),
            ],
            [("a", "f", A), ("b", "g", B)],
            id="two calls in turns",
        ),
        pytest.param(
            [call(A[:4], id_="a", name="f"), call(B[:4], id_="b", name="f"), call(A[4:], id_="a")],
            [("a", "f", A), ("b", "f", B[:4])],
            id="an id goes back to its call",
        ),
        pytest.param(
            [call("", id_="a", index=0), call(A[:4], index=0), call(A[4:], name="f", index=0)],
            [("a", "f", A)],
            id="the name comes last",
        ),
        pytest.param(
            [call({"n": 2512292042121000001, "t": "ż"}, id_="a", name="f", index=0)],
            [("a", "f", '{"n": 2512292042121000001, "t": "ż"}')],
            id="the arguments are an object",
        ),
        pytest.param([call(A, id_="a", index=0)], [("a", "", A)], id="no name at all"),
        pytest.param(
            [call(A, id_="a", name="f", index=3), call(B, id_="b", name="f", index=7)],
            [("a", "f", A), ("b", "f", B)],
            id="indexes with gaps",
        ),
        pytest.param([{"index": 0, "id": None, "function": None}], [("", "", "")], id="nothing"),
    ],
)
async def test_pieces_of_calls_find_their_call(deltas, expected):
    apart = await answers(*[calls(delta) for delta in deltas], *end("tool_calls"))
    together = await answers(calls(*deltas), *end("tool_calls"))

    assert made(apart) == expected
    assert made(together) == expected


async def test_the_function_call_of_old_servers_is_a_call():
    pieces = await answers(
        chunk({"function_call": {"name": "f", "arguments": A[:4]}}),
        chunk({"function_call": {"arguments": A[4:]}}),
        *end("function_call"),
    )

    assert made(pieces) == [("", "f", A)]
    assert pieces[-1] == Finished(USAGE, "tool_calls")


async def test_rc_037_text_and_calls_keep_their_order():
    pieces = await answers(
        chunk({"content": "Let me look. "}),
        calls(call('{"path":"/a"}', index=0, id_="a", name="read_file")),
        chunk({"content": "after"}),
        *end("tool_calls"),
    )

    assert pieces == [
        TextPiece("Let me look. "),
        ToolCallPiece(0, "a", "read_file", '{"path":"/a"}'),
        TextPiece("after"),
        Finished(USAGE, "tool_calls"),
    ]


@pytest.mark.parametrize(
    ("delta", "extra"),
    [
        ({"reasoning_content": "hm"}, {"reasoning_field": "reasoning_content"}),
        ({"reasoning": "hm"}, {"reasoning_field": "reasoning"}),
        ({"thinking": "hm"}, {}),
        ({"reasoning_details": [{"type": "reasoning.text", "text": "hm"}]}, {}),
        (
            {"reasoning": "hm", "reasoning_details": [{"text": "hm"}]},
            {"reasoning_field": "reasoning"},
        ),
        (
            {"reasoning_content": "hm", "reasoning": "hm", "content": None},
            {"reasoning_field": "reasoning_content"},
        ),
        ({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]}, {}),
    ],
)
async def test_reasoning_has_many_names(delta, extra):
    pieces = await answers(chunk(delta), *spoken("so"))

    assert pieces == [ThinkingPiece("hm", extra), TextPiece("so"), Finished(USAGE, "stop")]


async def test_reasoning_fields_that_are_no_text_are_passed_over():
    odd = {"content": {"x": 1}, "reasoning": {"x": 1}, "reasoning_details": "x", "refusal": None}

    assert await answers(chunk(odd), *spoken("so")) == [TextPiece("so"), Finished(USAGE, "stop")]


async def test_content_in_parts_and_refusals_are_text():
    pieces = await answers(
        chunk({"content": [{"type": "text", "text": "a"}]}), chunk({"refusal": "b"}), *end()
    )

    assert said(pieces) == "ab"


async def test_rc_055_a_thought_alone_is_an_answer_that_ends():
    pieces = await answers(chunk({"reasoning_content": "hm"}), *end())

    assert pieces == [
        ThinkingPiece("hm", {"reasoning_field": "reasoning_content"}),
        Finished(USAGE, "stop"),
    ]


@pytest.mark.parametrize(
    ("reason", "called", "expected"),
    [
        ("stop", False, "stop"),
        ("stop", True, "tool_calls"),
        ("tool_calls", True, "tool_calls"),
        ("tool_calls", False, "stop"),
        ("function_call", True, "tool_calls"),
        ("length", True, "length"),
        ("LENGTH", False, "length"),
        ("content_filter", False, "content_filter"),
        ("eos_token", False, "stop"),
    ],
)
async def test_finish_reasons(reason, called, expected):
    turn = [calls(call("{}", index=0, id_="a", name="f"))] if called else [chunk({"content": "a"})]
    pieces = await answers(*turn, *end(reason))

    assert pieces[-1] == Finished(USAGE, expected)


async def test_rc_034_a_call_that_was_cut_by_the_limit_ends_with_length():
    pieces = await answers(
        calls(
            call('{"path":"/README.md","content":"# half a f', index=0, id_="a", name="write_file")
        ),
        *end("length"),
    )

    assert pieces[-1] == Finished(USAGE, "length")


async def test_rc_050_a_stream_that_breaks_off_is_no_answer():
    cut = [chunk({"content": "two tokens"}), CUT]
    half = [{"_raw": 'data: {"id":"c1","choices":[{"index":0,"delta":{"content":"cut in js'}, CUT]
    whole_body = [chunk({"content": "two tokens"})]
    half_body = half[:1]
    errors = [await fails(*turn) for turn in (cut, half, whole_body, half_body, [])]

    assert {(each.code, each.info.type, each.retryable) for each in errors} == {
        ("model_stream_cut", "upstream", True)
    }


async def test_rc_051_a_reason_without_done_is_an_end_even_when_the_connection_breaks():
    pieces = await answers(chunk({"content": "70 chunks"}), chunk({}, "content_filter"), CUT)

    assert pieces == [
        TextPiece("70 chunks"),
        Finished(Usage(input_tokens=0, output_tokens=0), "content_filter"),
    ]


async def test_done_without_a_reason_is_an_end():
    assert await answers(chunk({"content": "a"}), DONE) == [
        TextPiece("a"),
        Finished(Usage(input_tokens=0, output_tokens=0), "stop"),
    ]


async def test_rc_049_a_retry_after_a_cut_keeps_one_attempt_only():
    broken = [
        chunk({"content": "Hello wor"}),
        calls(call('{"path":"/a","content":"pri', index=0, id_="a", name="write_file")),
        CUT,
    ]

    async def sleep(seconds):
        pass

    async with asking(broken, spoken("Hello world")) as (model, _):
        pieces = await heard(RetryingModel(model, retries=1, random=lambda: 0, sleep=sleep))

    after = pieces[pieces.index(Restarted()) + 1 :]

    assert after == [TextPiece("Hello world"), Finished(USAGE, "stop")]


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (None, (0, 0, 0, 0)),
        ({"prompt_tokens": 9, "completion_tokens": 2}, (9, 2, 0, 0)),
        (
            {
                "prompt_tokens": 9,
                "completion_tokens": 2,
                "prompt_tokens_details": {"cached_tokens": 8},
            },
            (9, 2, 8, 0),
        ),
        ({"prompt_tokens": 9, "completion_tokens": 2, "prompt_cache_hit_tokens": 7}, (9, 2, 7, 0)),
        ({"input_tokens": 9, "output_tokens": 2, "cache_creation_input_tokens": 4}, (9, 2, 0, 4)),
        (
            {"prompt_tokens": None, "completion_tokens": -1, "prompt_tokens_details": None},
            (0, 0, 0, 0),
        ),
    ],
)
async def test_usage_has_many_shapes(usage, expected):
    counted = {"choices": [], "usage": usage}
    pieces = await answers(chunk({"content": "a"}, "stop"), counted, DONE)
    finished = pieces[-1]

    assert tuple(finished.usage.model_dump().values()) == expected


async def test_usage_may_stand_in_the_choice():
    last = chunk({}, "stop")
    last["choices"][0]["usage"] = COUNTED["usage"]

    assert (await answers(last, DONE))[-1] == Finished(USAGE, "stop")


@pytest.mark.parametrize("headers", [{}, {"content-type": "application/json; charset=utf-8"}])
async def test_an_answer_in_one_document_is_an_answer(headers):
    message = {
        "role": "assistant",
        "content": "hi",
        "reasoning_content": "hm",
        "tool_calls": [call("{}", id_="a", name="f")],
    }
    document = {
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}],
        "usage": COUNTED["usage"],
    }
    body = json.dumps(document, indent=2)
    pieces = await answers(*refusal(200, body, **headers))

    assert pieces == [
        ThinkingPiece("hm", {"reasoning_field": "reasoning_content"}),
        TextPiece("hi"),
        ToolCallPiece(0, "a", "f", "{}"),
        Finished(USAGE, "tool_calls"),
    ]


async def test_a_stream_that_calls_itself_a_document_is_a_stream():
    body = f"data: {json.dumps(chunk({'content': 'hi'}))}\n\ndata: [DONE]\n\n"

    assert said(await answers(*refusal(200, body))) == "hi"


# What goes wrong


@pytest.mark.parametrize(
    "raw",
    [
        "data: garbage\n\n",
        "data: {\n\n",
        "data: [1]\n\n",
        'data: {"choices":"x"}\n\n',
        "data: " + "[" * 100_000 + "\n\n",
    ],
)
async def test_garbage_in_a_stream_is_a_bad_answer(raw):
    error = await fails(chunk({"content": "a"}), {"_raw": raw}, *end())

    assert (error.code, error.info.type, error.retryable) == ("model_bad_answer", "upstream", True)


async def test_a_line_without_an_end_is_a_bad_answer(monkeypatch):
    monkeypatch.setattr("app.adapters.models.openai_answer.MAX_HELD_BYTES", 1000)
    error = await fails({"_raw": "data: "}, *[{"_raw": "x" * 100}] * 20)

    assert error.code == "model_bad_answer"


@pytest.mark.parametrize(
    ("raw", "code", "type_", "retryable"),
    [
        ('{"error":{"message":"boom"}}', "model_upstream", "upstream", True),
        ('{"error":"boom"}', "model_upstream", "upstream", True),
        ('{"error":{"message":"boom","code":429}}', "model_rate_limited", "rate_limit", True),
        ('{"error":{"message":"boom","code":"502"}}', "model_upstream", "upstream", True),
        (
            '{"error":{"message":"boom","type":"rate_limit_error"}}',
            "model_rate_limited",
            "rate_limit",
            True,
        ),
        (
            '{"error":{"message":"boom","code":"invalid_api_key"}}',
            "model_authentication",
            "authentication",
            False,
        ),
        (
            '{"error":{"message":"boom","code":"context_length_exceeded"}}',
            "model_context_overflow",
            "invalid_request",
            False,
        ),
        (
            '{"object":"error","message":"boom","type":"BadRequestError","code":400}',
            "model_invalid_request",
            "invalid_request",
            False,
        ),
        (
            '{"error":{"code":502,"message":"boom"},"choices":[{"delta":{},"finish_reason":"error"}]}',
            "model_upstream",
            "upstream",
            True,
        ),
    ],
)
async def test_an_error_within_a_stream_is_an_error(raw, code, type_, retryable):
    for line in (f"data: {raw}\n\n", f"{raw}\n"):
        error = await fails(chunk({"content": "a"}), {"_raw": line}, *end())

        assert (error.code, error.info.type, error.retryable) == (code, type_, retryable)
        assert error.info.message == "boom"


async def test_an_error_within_a_stream_that_says_nothing_still_says_something():
    error = await fails({"_raw": 'data: {"error":{"code":500}}\n\n'})

    assert error.info.message == "The provider reported an error within the answer."


async def test_a_reason_that_means_failure_is_one():
    error = await fails(chunk({"content": "a"}), *end("insufficient_system_resource"))

    assert (error.code, error.retryable) == ("model_upstream", True)


@pytest.mark.parametrize(
    ("status", "type_", "code", "retryable"),
    [
        (400, "invalid_request", "model_invalid_request", False),
        (401, "authentication", "model_authentication", False),
        (402, "permission", "model_permission", False),
        (403, "permission", "model_permission", False),
        (404, "invalid_request", "model_invalid_request", False),
        (408, "connection", "model_timeout", True),
        (409, "invalid_request", "model_invalid_request", True),
        (418, "invalid_request", "model_invalid_request", False),
        (422, "invalid_request", "model_invalid_request", False),
        (429, "rate_limit", "model_rate_limited", True),
        (500, "upstream", "model_upstream", True),
        (503, "upstream", "model_upstream", True),
        (529, "upstream", "model_upstream", True),
        (302, "invalid_request", "model_invalid_request", False),
    ],
)
async def test_statuses_become_errors(status, type_, code, retryable):
    error = await fails(*refusal(status, complaint("no")))

    assert (error.info.type, error.code, error.retryable) == (type_, code, retryable)
    assert (error.info.code, error.info.message) == (code, "no")


async def test_money_that_is_used_up_does_not_come_back_in_seconds():
    error = await fails(*refusal(429, complaint("quota", code="insufficient_quota")))

    assert (error.code, error.retryable) == ("model_rate_limited", False)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (complaint("boom"), "boom"),
        ({"error": "boom"}, "boom"),
        ({"error": "Unauthorized", "message": "boom"}, "boom"),
        ({"message": "boom"}, "boom"),
        ({"detail": [{"loc": ["body"], "msg": "boom"}]}, "boom"),
        ({"errors": [{"message": "boom"}]}, "boom"),
        ([complaint("boom", status="INVALID")], "boom"),
        ("boom", "boom"),
        (complaint("Provider error", metadata={"raw": "boom"}), "Provider error: boom"),
        ("<html><body>Bad gateway</body></html>", "The model's provider answered with status 500"),
        ("", "The model's provider answered with status 500 (Internal Server Error)."),
        ("{}", "The model's provider answered with status 500"),
        ("[]", "The model's provider answered with status 500"),
        ('{"error":{"message":{"a":1}}}', "The model's provider answered with status 500"),
        (b"\xff\xfe bo\x00om", "\ufffd\ufffd bo\ufffdom"),
        (complaint("a\n\n  b\ud83d"), "a b\ufffd"),
        ("[" * 60_000, "[[["),
    ],
)
async def test_messages_of_errors_are_found_and_cleaned(body, message):
    error = await fails(*refusal(500, body))

    assert error.info.message.startswith(message)
    assert len(error.info.message) <= 500


async def test_the_key_is_never_in_a_message():
    for padding in ("", "x" * 490):
        body = complaint(f"{padding} Incorrect API key provided: {KEY}. {KEY}")
        error = await fails(*refusal(401, body))

        assert "secret" not in error.info.message
        assert "secret" not in str(error)


async def test_an_endless_error_body_is_read_no_further_than_needed():
    error = await fails(*refusal(500, "x" * 3_000_000))

    assert error.info.message == "x" * 500


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"Retry-After": "1.5"}, 1.5),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        (
            {
                "date": "Wed, 21 Oct 2026 07:28:00 GMT",
                "retry-after": "Wed, 21 Oct 2026 07:28:20 GMT",
            },
            20.0,
        ),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "-5"}, None),
    ],
)
async def test_the_wait_a_provider_asks_for_is_read(headers, seconds):
    error = await fails(*refusal(429, complaint("slow down"), **headers))

    assert error.retry_after_seconds == seconds


@pytest.mark.parametrize(
    "body",
    [
        complaint("too much", code="context_length_exceeded"),
        complaint("too much", type="exceed_context_size_error"),
        # RC-058: vLLM
        complaint(
            "This model's maximum context length is 262144 tokens. However, you requested 0 output "
            "tokens and your prompt contains at least 262145 input tokens"
        ),
        complaint("The prompt (total length 9000) exceeds the maximum model length of 8192"),
        complaint("the request exceeds the available context size, try increasing it"),
        complaint("request (9000 tokens) exceeds the available context size (8192 tokens)"),
        complaint(
            "The input (9000 tokens) is longer than the model's context length (8192 tokens)."
        ),
        complaint("prompt is too long: 200001 tokens > 200000 maximum"),
        complaint("input length and `max_tokens` exceed context limit: 1 + 2 > 200000"),
        complaint("The input token count (1100000) exceeds the maximum number of tokens allowed"),
        complaint(
            "This model's maximum prompt length is 131072 but the request contains 537812 tokens."
        ),
        complaint("Invalid request: Your request exceeded model token limit: 8192"),
        complaint("Please reduce the length of the messages or completion."),
        complaint("Range of input length should be [1, 30720]"),
        complaint("Your input exceeds the context window of this model."),
        complaint("context window exceeds limit"),
        complaint(
            "Provider returned error", metadata={"raw": '{"code":"context_length_exceeded"}'}
        ),
        {
            "object": "error",
            "message": "This model's maximum context length is 4 tokens.",
            "code": 400,
        },
    ],
)
async def test_rc_058_overflow_has_many_wordings(body):
    error = await fails(*refusal(400, body))

    assert (error.code, error.info.type, error.retryable) == (
        "model_context_overflow",
        "invalid_request",
        False,
    )


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (
            400,
            "max_tokens is too large: 1000000. This model supports at most 4096 completion tokens",
        ),
        (400, "Invalid value for 'temperature'"),
        (400, "messages: context must not be empty"),
        (429, "Rate limit reached: please reduce the length of the messages"),
    ],
)
async def test_other_complaints_are_no_overflow(status, message):
    error = await fails(*refusal(status, complaint(message)))

    assert error.code != "model_context_overflow"


async def test_a_provider_that_is_not_there_is_a_connection_error():
    async with client() as session:
        spec = ModelSpec(provider="openai", name="fake")
        model = OpenAIModel(spec, client=session, base_url="http://127.0.0.1:1/v1", api_key=KEY)
        with pytest.raises(ModelError) as caught:
            await heard(model)

    error = caught.value

    assert (error.code, error.info.type, error.retryable) == (
        "model_connection",
        "connection",
        True,
    )
    assert "127.0.0.1" not in error.info.message


@pytest.mark.parametrize("base_url", ["http://x.org:port/v1", "ftp://x.org/v1"])
async def test_an_address_that_is_none_is_an_error_of_the_setup(base_url):
    async with client() as session:
        spec = ModelSpec(provider="openai", name="fake")
        model = OpenAIModel(spec, client=session, base_url=base_url, api_key=KEY)
        with pytest.raises(ModelError) as caught:
            await heard(model)

    assert (caught.value.info.type, caught.value.retryable) == ("setup", False)


async def test_a_connection_that_breaks_before_the_answer_is_a_connection_error():
    async def hang_up(reader, writer):
        await reader.read(10)
        writer.transport.abort()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    async with server, client() as session:
        spec = ModelSpec(provider="openai", name="fake")
        base_url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        model = OpenAIModel(spec, client=session, base_url=base_url, api_key=None)
        with pytest.raises(ModelError) as caught:
            await heard(model)

    assert (caught.value.code, caught.value.retryable) == ("model_connection", True)


async def test_silence_is_a_timeout():
    error = await fails(
        chunk({"content": "a"}),
        {"_sleep": 60},
        silence_seconds=0.2,
    )

    assert (error.code, error.info.type, error.retryable) == ("model_timeout", "connection", True)


async def test_silence_after_the_reason_is_an_end():
    pieces = await answers(
        chunk({"content": "a"}, "stop"),
        {"_sleep": 60},
        silence_seconds=0.2,
    )

    assert said(pieces) == "a"
