"""The agent's plan as tools: names, parameters and texts are those of AgentScope's task tools.

What differs is what AgentScope lets pass: an update that names an unknown task or closes a circle is
refused as a whole, and only open tasks block one another.
"""

import re
from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from app.adapters.tools.function import parameters_schema
from app.core.state import Task, TasksContext
from app.core.values import JsonObject, Value
from app.ports.models import ToolSchema
from app.ports.tools import TextChunk, Tool, ToolCall, ToolChunk, ToolEnd

_CREATE = """Add one task to your plan.

Plan when the work has three or more steps, when you are given several things to do, or when you are \
asked for a plan; a single simple step needs none. Make one task for each step, with a subject that \
says in a few words what is to be done, and a description from which the work could be done later \
without asking again. New tasks are pending. Set up their order with TaskUpdate, and look with \
TaskList first whether the task is there already."""

_GET = """Read one task of your plan in full: subject, status, description, owner, metadata, the tasks \
that it waits for and the tasks that wait for it.

Read a task before you begin to work on it. While it is blocked, work on the tasks that block it."""

_LIST = """List all tasks of your plan, one a line: id, [status], subject, (owner), [blocked by ids].

Look here for what to do next: take pending tasks that nothing blocks, the lowest id first. Look again \
after each task that you complete, because it may have unblocked others."""

_UPDATE = """Change one task of your plan, or delete it; only what you give is changed.

Set the status to in_progress when you begin, and to completed as soon as the work is wholly done; \
a task with failing tests, open errors or missing parts stays in_progress. A completed task no longer \
blocks others. The status deleted removes the task for good. With add_blocks and add_blocked_by say \
which tasks must be done before which."""

_NUMBER = re.compile(r"[0-9]{1,18}")
_COMPLETED = (
    "Task completed. Call TaskList now to find your next available task or see if your work unblocked "
    "others."
)

_Link: TypeAlias = tuple[str, str]
"""A task's id, and the id of a task that waits for it."""


def task_tools() -> list[Tool]:
    """Return the tools with which an agent keeps its plan."""
    return [
        _PlanTool(_schema("TaskCreate", _CREATE, _Creation), _create, idempotent=False),
        _PlanTool(_schema("TaskGet", _GET, _Choice), _get, idempotent=True),
        _PlanTool(_schema("TaskList", _LIST, _Nothing), _list, idempotent=True),
        _PlanTool(_schema("TaskUpdate", _UPDATE, _Change), _update, idempotent=True),
    ]


class _Arguments(Value):
    # What stands below a field is what the model is told of it.
    model_config = ConfigDict(use_attribute_docstrings=True)


class _Creation(_Arguments):
    subject: str = Field(min_length=1)
    """A brief title for the task"""
    description: str
    """What needs to be done"""
    metadata: JsonObject | None = None
    """Arbitrary metadata to attach to the task"""


class _Choice(_Arguments):
    task_id: str
    """The ID of the task to retrieve"""


class _Nothing(_Arguments):
    pass


class _Change(_Arguments):
    task_id: str
    """The task id."""
    subject: str | None = Field(default=None, min_length=1)
    """New subject for the task"""
    description: str | None = None
    """New description for the task"""
    add_blocks: list[str] | None = None
    """Task IDs that this task blocks"""
    status: Literal["pending", "in_progress", "completed", "deleted"] | None = None
    """New status for the task"""
    add_blocked_by: list[str] | None = None
    """Task IDs that block this task"""
    owner: str | None = None
    """New owner for the task"""
    metadata: JsonObject | None = None
    """Metadata keys to merge into the task. Set a key to null to delete it."""


class _Refused(Exception):
    """The plan does not allow it; the text says why."""


@dataclass(frozen=True)
class _PlanTool:
    """A tool that reads and writes the plan in one go, so that parallel calls lose nothing."""

    schema: ToolSchema
    act: Callable[[ToolCall], str]
    idempotent: bool
    concurrent: bool = True

    async def run(self, call: ToolCall) -> AsyncGenerator[ToolChunk, None]:
        try:
            text = self.act(call)
        except _Refused as refusal:
            yield TextChunk(str(refusal))
            yield ToolEnd("error", {})
        else:
            yield TextChunk(text)


def _schema(name: str, description: str, parameters: type[BaseModel]) -> ToolSchema:
    return ToolSchema(name=name, description=description, parameters=parameters_schema(parameters))


def _create(call: ToolCall) -> str:
    asked = _Creation.model_validate(call.arguments)
    tasks = call.tasks.read().tasks
    task = Task(
        id=_next_id(tasks),
        subject=asked.subject,
        description=asked.description,
        metadata=asked.metadata or {},
        created_at=call.now,
    )
    call.tasks.write(TasksContext(tasks=[*tasks, task]))
    return f"Task (id={task.id}) created successfully: {task.subject}"


def _get(call: ToolCall) -> str:
    asked = _Choice.model_validate(call.arguments)
    tasks = call.tasks.read().tasks
    task = _find(tasks, asked.task_id)
    if task is None:
        raise _Refused("Task not found")
    lines = [
        f"Task (id={task.id}): {task.subject}",
        f"Status: {task.state}",
        f"Description: {task.description}",
    ]
    if task.owner:
        lines.append(f"Owner: {task.owner}")
    if blockers := _blockers(task, tasks):
        lines.append(f"Blocked by: {_hashed(blockers)}")
    if task.blocks:
        lines.append(f"Blocks: {_hashed(task.blocks)}")
    if task.metadata:
        # As Python writes it, not as JSON does: so AgentScope has it.
        lines.append(f"Metadata: {task.metadata}")
    return "\n".join(lines)


def _list(call: ToolCall) -> str:
    tasks = call.tasks.read().tasks
    if not tasks:
        return "No tasks available."
    return "\n".join(_line(task, tasks) for task in tasks)


def _line(task: Task, tasks: list[Task]) -> str:
    owner = f"({task.owner})" if task.owner else ""
    blockers = _blockers(task, tasks)
    blocked = f"[blocked by {', '.join(blockers)}]" if blockers else ""
    return f"{task.id} [{task.state}] {task.subject}{owner}{blocked}"


def _update(call: ToolCall) -> str:
    asked = _Change.model_validate(call.arguments)
    tasks = call.tasks.read().tasks
    task = _find(tasks, asked.task_id)
    if task is None:
        raise _Refused(f"TaskNotFoundError: The task (id={asked.task_id}) does not exist.")
    _refuse_unknown(asked, tasks)
    if asked.status == "deleted":
        call.tasks.write(TasksContext(tasks=_without(tasks, task.id)))
        return f"Task (id={task.id}) has been deleted."
    changed, fields = _changed(task, asked)
    after = [changed if each.id == task.id else each for each in tasks]
    if changed.state == "completed":
        after = _unlinked(after, task.id)
    before_me = [(blocker, task.id) for blocker in asked.add_blocked_by or []]
    after_me = [(task.id, blocked) for blocked in asked.add_blocks or []]
    after, added = _linked(after, [*after_me, *before_me])
    if added.intersection(after_me):
        fields.add("add_blocks")
    if added.intersection(before_me):
        fields.add("add_blocked_by")
    if not fields:
        return (
            f"No updates were made to the task (id={task.id}). Make sure you provided at least one "
            "field to update and the values are correct."
        )
    call.tasks.write(TasksContext(tasks=after))
    text = f"Update task (id={task.id}) {', '.join(sorted(fields, key=_ORDER.index))}."
    return f"{text}\n\n{_COMPLETED}" if asked.status == "completed" else text


_ORDER = ("subject", "description", "add_blocks", "add_blocked_by", "status", "owner", "metadata")
"""In which order the text of an update names what was changed."""


def _refuse_unknown(asked: _Change, tasks: list[Task]) -> None:
    known = {task.id for task in tasks}
    mentioned = [*(asked.add_blocks or []), *(asked.add_blocked_by or [])]
    unknown = [each for each in dict.fromkeys(mentioned) if each not in known]
    if unknown:
        listed = ", ".join(f"id={each}" for each in unknown)
        many = "tasks" if len(unknown) > 1 else "task"
        verb = "do" if len(unknown) > 1 else "does"
        raise _Refused(
            f"TaskNotFoundError: The {many} ({listed}) {verb} not exist. Nothing was changed."
        )


def _changed(task: Task, asked: _Change) -> tuple[Task, set[str]]:
    """Apply everything but links, and name the fields that were given."""
    update: dict[str, object] = {
        name: value
        for name, value in (
            ("subject", asked.subject),
            ("description", asked.description),
            ("state", asked.status),
            ("owner", asked.owner),
        )
        if value is not None
    }
    if asked.metadata:
        merged = task.metadata | asked.metadata
        update["metadata"] = {
            key: value
            for key, value in merged.items()
            if value is not None or key not in asked.metadata
        }
    fields = {"status" if name == "state" else name for name in update}
    return task.model_copy(update=update), fields


def _linked(tasks: list[Task], links: Iterable[_Link]) -> tuple[list[Task], set[_Link]]:
    """Add links between open tasks; those that are there, or have a completed end, change nothing."""
    added: set[_Link] = set()
    state = {task.id: task.state for task in tasks}
    for blocker, blocked in links:
        if blocker == blocked:
            raise _Refused(
                f"TaskCycleError: The task (id={blocker}) cannot wait for itself. "
                "Nothing was changed."
            )
        if "completed" in (state[blocker], state[blocked]):
            continue
        if blocked in _dependents(tasks, blocker):
            continue
        if _waits(tasks, blocker, for_=blocked):
            raise _Refused(
                f"TaskCycleError: The task (id={blocked}) cannot wait for the task (id={blocker}), "
                f"which itself waits for the task (id={blocked}). Nothing was changed."
            )
        tasks = [_with_link(task, blocker, blocked) for task in tasks]
        added.add((blocker, blocked))
    return tasks, added


def _with_link(task: Task, blocker: str, blocked: str) -> Task:
    if task.id == blocker and blocked not in task.blocks:
        return task.model_copy(update={"blocks": [*task.blocks, blocked]})
    if task.id == blocked and blocker not in task.blocked_by:
        return task.model_copy(update={"blocked_by": [*task.blocked_by, blocker]})
    return task


def _waits(tasks: list[Task], waiting: str, *, for_: str) -> bool:
    """Tell whether a task waits for another, be it through others."""
    seen: set[str] = set()
    ahead = [for_]
    while ahead:
        current = ahead.pop()
        if current == waiting:
            return True
        if current not in seen:
            seen.add(current)
            ahead.extend(_dependents(tasks, current))
    return False


def _dependents(tasks: list[Task], blocker: str) -> list[str]:
    """Return the ids of the tasks that wait for a task, whichever end of the link says so."""
    found: list[str] = []
    for task in tasks:
        if task.id == blocker and task.state != "completed":
            found.extend(task.blocks)
        if blocker in _blockers(task, tasks):
            found.append(task.id)
    return found


def _blockers(task: Task, tasks: list[Task]) -> list[str]:
    """Return the ids of the open tasks that a task waits for.

    States of AgentScope, and plans that were written by hand, may name tasks that are done or gone.
    """
    is_open = {each.id for each in tasks if each.state != "completed"}
    return [each for each in task.blocked_by if each in is_open]


def _without(tasks: list[Task], task_id: str) -> list[Task]:
    return [task for task in _unlinked(tasks, task_id) if task.id != task_id]


def _unlinked(tasks: list[Task], task_id: str) -> list[Task]:
    """Let no task wait for this one, nor this one for any."""
    return [
        task.model_copy(update={"blocks": [], "blocked_by": []})
        if task.id == task_id
        else task.model_copy(
            update={
                "blocks": [each for each in task.blocks if each != task_id],
                "blocked_by": [each for each in task.blocked_by if each != task_id],
            }
        )
        for task in tasks
    ]


def _find(tasks: list[Task], task_id: str) -> Task | None:
    return next((task for task in tasks if task.id == task_id), None)


def _next_id(tasks: list[Task]) -> str:
    """Return a number above all that any task has, or mentions: nobody may be mistaken for another."""
    mentioned = [each for task in tasks for each in (task.id, *task.blocks, *task.blocked_by)]
    numbers = [int(each) for each in mentioned if _NUMBER.fullmatch(each)]
    return str(max(numbers, default=0) + 1)


def _hashed(ids: Iterable[str]) -> str:
    return ", ".join(f"#{each}" for each in ids)
