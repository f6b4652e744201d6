"""A script in a model's place: for demos and tests, without a network, a clock or chance."""

import asyncio
import itertools
import json
import re
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from dataclasses import dataclass

from app.core.messages import (
    Block,
    HintBlock,
    Msg,
    ToolCallBlock,
    ToolResultBlock,
    Usage,
    text_of,
)
from app.core.tokens import count_message, count_text, count_tools
from app.core.values import JsonObject
from app.ports.models import Finished, Piece, Prompt, TextPiece, ThinkingPiece, ToolCallPiece

CONTEXT_SIZE = 128_000
MOST_WORDS = 20_000
UNKNOWN_TASK = "no-such-task"
MOST_GOAL = 80
FAILURES = 3

HELP = """Say one of these words, and I do what stands behind it:
- plan …: create three tasks in parallel, begin the first, and leave them open
- work: list the tasks, complete the next open one and begin the one after it
- fail: make the same failing call until the runtime tells me to stop
- call NAME {...}: call the tool of that name with these arguments; several at once, if you like
- where, time, what do you know: repeat what the runtime told me of my surroundings
- think: show a thinking block before the answer
- long N: say N words, at most 20,000
- echo …: say the text back
- help: say this"""

_KEYWORD = re.compile(
    r"\b(plan|work|fail|call(?=\s+[\w-]+\s*\{)|where|what do you know|time|think|long(?=\s+\d)"
    r"|echo|help)\b",
    re.IGNORECASE,
)
_FIELD = re.compile(r"<([A-Za-z][A-Za-z0-9_-]*)>([^<]*)</\1>")
_TASK_LINE = re.compile(
    r"(?P<id>\S+) \[(?P<state>pending|in_progress)\] (?P<subject>.*?)"
    r"(?P<blocked>\[blocked by [^\]]*\])?"
)
_CREATED = re.compile(r"Task \(id=([^)]+)\) created")
_CALL = re.compile(r"\s*([\w-]+)\s*(?=\{)")
_decoder = json.JSONDecoder()
_WORD = re.compile(r"\s*\S{1,64}|\s+")
_OF_ITS_MOMENT = frozenset({"tasks", "context-length", "tool-error"})
"""Fields that say something of one moment only, and are not worth repeating later."""


class ScriptedModel:
    """A deterministic stand-in for a language model, which says in every answer that it is none.

    It reads the conversation alone: the last user message, its own calls and their results since, and
    the runtime's hints. The earliest of these words in the user's message decides what it does:

    - `plan …`: three parallel `TaskCreate` calls, `TaskUpdate` of the first to in_progress, a summary;
      the tasks stay open.
    - `work`: `TaskList`, then `TaskUpdate` that completes the next open task and begins the one after
      it, then what is left.
    - `fail`: the same failing `TaskUpdate` call in up to three rounds, until a `<tool-error>` hint.
    - `call NAME {…} NAME {…}`: these calls at once, then what they brought.
    - `where`, `time`, `what do you know`: repeats what the runtime's hints told it.
    - `think`: a thinking block before the answer.
    - `long N`: N words, at most 20,000.
    - `echo …`: the text itself.
    - `help`: this list. Anything else: a short answer that says what it is.
    """

    def __init__(self, name: str = "demo") -> None:
        self._name = f"scripted:{name}"

    @property
    def name(self) -> str:
        """The name, which begins with `scripted:` so that nobody takes it for a language model."""
        return self._name

    @property
    def context_size(self) -> int:
        """Tokens that the window is said to hold."""
        return CONTEXT_SIZE

    async def stream(self, prompt: Prompt) -> AsyncGenerator[Piece, None]:
        """Answer as the script has it.

        Yields:
            Words, parts of calls, and `Finished` with estimated tokens.
        """
        answer = _decide(_Reading(prompt, self._name))
        for piece in answer.pieces():
            yield piece
            # Nothing here waits, so a long answer would keep everybody else waiting.
            await asyncio.sleep(0)
        yield Finished(
            usage=Usage(input_tokens=_size(prompt), output_tokens=answer.tokens()),
            reason="tool_calls" if answer.calls else "stop",
        )


@dataclass(frozen=True)
class _Call:
    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class _Answer:
    text: str
    thought: str = ""
    calls: tuple[_Call, ...] = ()

    def pieces(self) -> Iterator[Piece]:
        for word in _WORD.findall(self.thought):
            yield ThinkingPiece(word)
        for word in _WORD.findall(self.text):
            yield TextPiece(word)
        for index, call in enumerate(self.calls):
            yield ToolCallPiece(index=index, id=call.id, name=call.name)
            for word in _WORD.findall(call.arguments):
                yield ToolCallPiece(index=index, arguments=word)

    def tokens(self) -> int:
        written = "".join(call.name + call.arguments for call in self.calls)
        return count_text(self.thought + self.text + written)


class _Reading:
    """What the script takes from a prompt."""

    def __init__(self, prompt: Prompt, name: str) -> None:
        self._prompt = prompt
        self.introduction = f"I am a script ({name}), not a language model."
        asked = next(
            (at for at, each in _newest_first(prompt.context) if each.role == "user"), None
        )
        self.request = "" if asked is None else prompt.context[asked].text
        since = prompt.context[0 if asked is None else asked + 1 :]
        blocks = list(_own_blocks(since))
        self._hints_since = [block for block in blocks if isinstance(block, HintBlock)]
        self._results = {each.id: each for each in blocks if isinstance(each, ToolResultBlock)}
        self._calls = [block for block in blocks if isinstance(block, ToolCallBlock)]

    def rest(self, keyword: str) -> str:
        """Return what the user said behind a keyword."""
        found = re.search(rf"\b{keyword}\b:?(.*)", self.request, re.IGNORECASE | re.DOTALL)
        return found[1].strip() if found else ""

    def calls(self, tool: str) -> list[ToolCallBlock]:
        """Return the calls of a tool since the user spoke."""
        return [call for call in self._calls if call.name == tool]

    def succeeded(self, tool: str) -> list[str]:
        """Return what the tool's successful calls since the user spoke brought, in their order."""
        results = [self._results.get(call.id) for call in self.calls(tool)]
        return [text_of(each.output) for each in results if each and each.state == "success"]

    def brought(self, tool: str) -> list[str]:
        """Return what the tool's calls since the user spoke brought, failures too."""
        results = [self._results.get(call.id) for call in self.calls(tool)]
        return [text_of(each.output) for each in results if each]

    def new_calls(self, *wanted: tuple[str, JsonObject]) -> tuple[_Call, ...]:
        """Make calls whose ids go on from the calls of the whole conversation."""
        made = sum(isinstance(block, ToolCallBlock) for block in _own_blocks(self._prompt.context))
        return tuple(
            _Call(f"call_{made + at}", tool, json.dumps(arguments, ensure_ascii=False))
            for at, (tool, arguments) in enumerate(wanted, start=1)
        )

    def obstacle(self, *tools: str) -> str:
        """Say why the tools cannot be called, or nothing if they can."""
        if not self._prompt.may_call_tools:
            return "I may not call tools in this answer."
        offered = {schema.name for schema in self._prompt.tools}
        missing = [tool for tool in tools if tool not in offered]
        return f"I have no tool named {' or '.join(missing)}." if missing else ""

    def told_since(self, field: str) -> bool:
        """Tell whether a hint since the user spoke holds a field."""
        return any(field in _fields(hint) for hint in self._hints_since)

    def knowledge(self) -> dict[str, str]:
        """Return what the newest hint told, and what older hints told that still may hold."""
        known: dict[str, str] = {}
        newest = True
        for _, message in _newest_first(self._prompt.context):
            for block in reversed(list(_own_blocks([message]))):
                told = _fields(block) if isinstance(block, HintBlock) else {}
                for field, value in told.items():
                    if newest or field not in _OF_ITS_MOMENT:
                        known.setdefault(field, value)
                newest = newest and not told
        return known


def _plan(reading: _Reading) -> _Answer:
    words = reading.rest("plan").removeprefix("for ").removeprefix("to ").split()
    goal = " ".join(words)[:MOST_GOAL].strip(" .") or "the demo"
    if not reading.calls("TaskCreate"):
        if obstacle := reading.obstacle("TaskCreate"):
            return _Answer(f"{reading.introduction} {obstacle} So there is no plan.")
        steps = ("Look into", "Work on", "Check")
        tasks: list[tuple[str, JsonObject]] = [
            (
                "TaskCreate",
                {"subject": f"{step} {goal}", "description": f"{step} {goal}, then say what came."},
            )
            for step in steps
        ]
        return _Answer(
            f"{reading.introduction} My script makes the same three tasks of every plan.",
            thought="The message says plan, so the script asks for three tasks at once.",
            calls=reading.new_calls(*tasks),
        )
    made = [found[1] for text in reading.succeeded("TaskCreate") if (found := _CREATED.match(text))]
    if not made:
        return _Answer(f"{reading.introduction} No task could be created, so there is no plan.")
    if not reading.calls("TaskUpdate") and not reading.obstacle("TaskUpdate"):
        begin: JsonObject = {"task_id": made[0], "status": "in_progress"}
        return _Answer("Now I begin the first.", calls=reading.new_calls(("TaskUpdate", begin)))
    begun = "the first is in progress" if reading.succeeded("TaskUpdate") else "none is begun"
    return _Answer(
        f"The plan for {goal} stands: {_count(len(made))}, {begun}. They stay open until you say "
        '"work".'
    )


def _work(reading: _Reading) -> _Answer:
    if not reading.calls("TaskList"):
        if obstacle := reading.obstacle("TaskList", "TaskUpdate"):
            return _Answer(f"{reading.introduction} {obstacle} So I cannot work on tasks.")
        return _Answer(
            f"{reading.introduction} I look at the tasks.",
            calls=reading.new_calls(("TaskList", {})),
        )
    lists = reading.succeeded("TaskList")
    if not lists:
        return _Answer("The tasks could not be listed, so I stop.")
    return _complete_next(reading, listing=lists[-1])


def _complete_next(reading: _Reading, *, listing: str) -> _Answer:
    open_tasks = [found for line in listing.splitlines() if (found := _TASK_LINE.fullmatch(line))]
    # The task in progress first; sorting keeps the order of the rest.
    ready = sorted(
        (task for task in open_tasks if not task["blocked"]),
        key=lambda task: task["state"] != "in_progress",
    )
    if not ready:
        return _Answer("Every open task is blocked." if open_tasks else "No task is open.")
    if not reading.calls("TaskUpdate"):
        if obstacle := reading.obstacle("TaskUpdate"):
            return _Answer(f"{obstacle} {_count(len(open_tasks))} stay open.")
        updates = [_set(ready[0]["id"], "completed")]
        if len(ready) > 1 and ready[1]["state"] == "pending":
            updates.append(_set(ready[1]["id"], "in_progress"))
        return _Answer(
            f'I complete "{ready[0]["subject"]}". (I only say so: a script does no work.)',
            calls=reading.new_calls(*updates),
        )
    if not reading.succeeded("TaskUpdate"):
        return _Answer("The task could not be completed, so I stop.")
    left = [task["subject"] for task in open_tasks if task["id"] != ready[0]["id"]]
    if not left:
        return _Answer("That was the last open task. Nothing is left.")
    return _Answer(f"Left: {_count(len(left))}: {'; '.join(left)}.")


def _set(task_id: str, status: str) -> tuple[str, JsonObject]:
    return "TaskUpdate", {"task_id": task_id, "status": status}


def _fail(reading: _Reading) -> _Answer:
    if reading.told_since("tool-error"):
        return _Answer("The runtime told me that the same call keeps failing, so I stop.")
    made = len(reading.calls("TaskUpdate"))
    if obstacle := reading.obstacle("TaskUpdate"):
        return _Answer(f"{reading.introduction} {obstacle} So nothing can fail.")
    if made >= FAILURES:
        return _Answer(f"The call failed {made} times, and nobody told me to stop. I stop anyway.")
    text = f"{reading.introduction} I try what cannot work." if made == 0 else "Once more."
    return _Answer(text, calls=reading.new_calls(_set(UNKNOWN_TASK, "completed")))


def _call(reading: _Reading) -> _Answer:
    wanted = _wanted_calls(reading.rest("call"))
    names = list(dict.fromkeys(name for name, _ in wanted))
    if any(reading.calls(name) for name in names):
        brought = [f"- {name}: {text}" for name in names for text in reading.brought(name)]
        return _Answer("This is what came back:\n" + "\n".join(brought))
    if not wanted:
        return _Answer(f"{reading.introduction} Behind the tool's name I need a JSON object.")
    if obstacle := reading.obstacle(*names):
        return _Answer(f"{reading.introduction} {obstacle}")
    return _Answer(f"{reading.introduction} I call what you say.", calls=reading.new_calls(*wanted))


def _wanted_calls(text: str) -> list[tuple[str, JsonObject]]:
    """Read names of tools with their arguments, up to what is none."""
    wanted: list[tuple[str, JsonObject]] = []
    while found := _CALL.match(text):
        try:
            arguments, end = _decoder.raw_decode(text, found.end())
        except (ValueError, RecursionError):
            break
        wanted.append((found[1], arguments))
        text = text[end:]
    return wanted


def _tell(reading: _Reading) -> _Answer:
    known = reading.knowledge()
    if not known:
        return _Answer(f"{reading.introduction} The runtime has told me nothing so far.")
    lines = "\n".join(f"- {field}: {value}" for field, value in known.items())
    return _Answer(f"{reading.introduction} This is what the runtime told me:\n{lines}")


def _think(reading: _Reading) -> _Answer:
    return _Answer(
        f"{reading.introduction} What you saw as thinking was written in advance.",
        thought="A script does not think. This text stands where a model would put its thoughts.",
    )


def _long(reading: _Reading) -> _Answer:
    found = re.search(r"\blong\s+(\d{1,9})", reading.request, re.IGNORECASE)
    words = min(int(found[1]) if found else 0, MOST_WORDS)
    filler = (f"word {number}," for number in itertools.count(1))
    source = itertools.chain([reading.introduction], filler)
    every = itertools.chain.from_iterable(text.split() for text in source)
    return _Answer(" ".join(itertools.islice(every, words)) or "That makes no words.")


def _echo(reading: _Reading) -> _Answer:
    return _Answer(reading.rest("echo") or "There is nothing to say back.")


def _help(reading: _Reading) -> _Answer:
    return _Answer(f"{reading.introduction} {HELP}")


def _greet(reading: _Reading) -> _Answer:
    time = reading.knowledge().get("current-time")
    now = f" The last time that I was told is {time}." if time else ""
    return _Answer(f"Hello! {reading.introduction}{now} {HELP}")


_SCRIPTS: dict[str, Callable[[_Reading], _Answer]] = {
    "plan": _plan,
    "work": _work,
    "fail": _fail,
    "call": _call,
    "where": _tell,
    "time": _tell,
    "what do you know": _tell,
    "think": _think,
    "long": _long,
    "echo": _echo,
    "help": _help,
}


def _decide(reading: _Reading) -> _Answer:
    found = _KEYWORD.search(reading.request)
    script = _SCRIPTS[found[1].lower()] if found else _greet
    return script(reading)


def _count(tasks: int) -> str:
    return "1 task" if tasks == 1 else f"{tasks} tasks"


def _fields(hint: HintBlock) -> dict[str, str]:
    """Read the fields of a hint; the tags that only wrap others are none."""
    return {
        name: value.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
        for name, value in _FIELD.findall(text_of(hint.hint))
        if name != "system-reminder"
    }


def _newest_first(context: Iterable[Msg]) -> Iterator[tuple[int, Msg]]:
    return reversed(list(enumerate(context)))


def _own_blocks(messages: Iterable[Msg]) -> Iterator[Block]:
    for message in messages:
        if message.role == "assistant":
            yield from message.content


def _size(prompt: Prompt) -> int:
    schemas: list[JsonObject] = [
        {"name": each.name, "description": each.description, "parameters": each.parameters}
        for each in prompt.tools
    ]
    spoken = sum(count_message(message) for message in prompt.context)
    return count_text(prompt.system) + count_text(prompt.summary) + spoken + count_tools(schemas)
