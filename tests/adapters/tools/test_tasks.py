"""The plan's tools, driven through the port."""

import asyncio
from dataclasses import dataclass, field

import pytest
from jsonschema import Draft202012Validator

from app.adapters.tools.tasks import task_tools
from app.core.specs import TASK_TOOLS
from app.core.state import Task, TasksContext
from app.ports.tools import TextChunk, ToolCall, ToolEnd

NOW = "2026-11-28T13:45:59Z"


@dataclass
class Plan:
    """A plan in memory, and how often it was written."""

    tasks: TasksContext = field(default_factory=TasksContext)
    writes: list[TasksContext] = field(default_factory=list)

    def read(self):
        return self.tasks

    def write(self, tasks):
        self.tasks = tasks
        self.writes.append(tasks)

    def task(self, task_id):
        return next(task for task in self.tasks.tasks if task.id == task_id)


async def use(plan, name, **arguments):
    """Call a tool as the engine does, and return how it ended and what it said."""
    tool = next(tool for tool in task_tools() if tool.schema.name == name)
    Draft202012Validator(tool.schema.parameters).validate(arguments)
    call = ToolCall(
        id="call_1", key="key", arguments=arguments, now=NOW, session_id="ses_1", tasks=plan
    )
    state, text = "success", ""
    async for chunk in tool.run(call):
        match chunk:
            case TextChunk(more):
                text += more
            case ToolEnd(ended, metadata):
                state = ended
                assert metadata == {}
    return state, text


async def plan_of(count):
    plan = Plan()
    for number in range(1, count + 1):
        await use(plan, "TaskCreate", subject=f"s{number}", description=f"d{number}")
    plan.writes.clear()
    return plan


# Recorded of AgentScope 2.0.11: builtin_tools.json, samples.
RECORDED = [
    (
        "TaskCreate",
        {"subject": "s1", "description": "d1"},
        "success",
        "Task (id=1) created successfully: s1",
    ),
    (
        "TaskCreate",
        {"subject": "s2", "description": "d2", "metadata": {"k": 1}},
        "success",
        "Task (id=2) created successfully: s2",
    ),
    (
        "TaskUpdate",
        {"task_id": "2", "add_blocked_by": ["1"], "status": "in_progress", "owner": "me"},
        "success",
        "Update task (id=2) add_blocked_by, status, owner.",
    ),
    ("TaskList", {}, "success", "1 [pending] s1\n2 [in_progress] s2(me)[blocked by 1]"),
    (
        "TaskGet",
        {"task_id": "2"},
        "success",
        (
            "Task (id=2): s2\nStatus: in_progress\nDescription: d2\nOwner: me\nBlocked by: #1\n"
            "Metadata: {'k': 1}"
        ),
    ),
    ("TaskGet", {"task_id": "9"}, "error", "Task not found"),
    (
        "TaskUpdate",
        {"task_id": "1", "status": "completed"},
        "success",
        (
            "Update task (id=1) status.\n\nTask completed. Call TaskList now to find your next "
            "available task or see if your work unblocked others."
        ),
    ),
    (
        "TaskUpdate",
        {"task_id": "9", "status": "completed"},
        "error",
        "TaskNotFoundError: The task (id=9) does not exist.",
    ),
    (
        "TaskUpdate",
        {"task_id": "2"},
        "success",
        (
            "No updates were made to the task (id=2). Make sure you provided at least one field to "
            "update and the values are correct."
        ),
    ),
    (
        "TaskUpdate",
        {"task_id": "2", "status": "deleted"},
        "success",
        "Task (id=2) has been deleted.",
    ),
    ("TaskList", {}, "success", "1 [completed] s1"),
]


async def test_the_recorded_calls_of_agentscope_give_the_recorded_results():
    plan = Plan()

    results = [await use(plan, name, **arguments) for name, arguments, _, _ in RECORDED]

    assert results == [(state, text) for _, _, state, text in RECORDED]


def test_the_tools_are_those_that_the_injection_knows():
    names = tuple(tool.schema.name for tool in task_tools())

    assert names == TASK_TOOLS
    assert all(tool.concurrent for tool in task_tools())


def test_only_creating_a_task_may_not_be_repeated_blindly():
    repeatable = {tool.schema.name: tool.idempotent for tool in task_tools()}

    assert repeatable == {
        "TaskCreate": False,
        "TaskGet": True,
        "TaskList": True,
        "TaskUpdate": True,
    }


def test_the_schemas_are_plain_and_refuse_unknown_parameters():
    schemas = {tool.schema.name: tool.schema.parameters for tool in task_tools()}

    assert list(schemas["TaskUpdate"]["properties"]) == [
        "task_id",
        "subject",
        "description",
        "add_blocks",
        "status",
        "add_blocked_by",
        "owner",
        "metadata",
    ]
    assert schemas["TaskCreate"]["properties"]["metadata"] == {
        "anyOf": [{"additionalProperties": True, "type": "object"}, {"type": "null"}],
        "default": None,
        "description": "Arbitrary metadata to attach to the task",
    }
    assert all(schema["additionalProperties"] is False for schema in schemas.values())
    assert "title" not in str(schemas).replace("brief title", "")


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("TaskUpdate", {"task_id": "1", "status": "done"}),
        ("TaskUpdate", {"status": "completed"}),
        ("TaskUpdate", {"task_id": 1}),
        ("TaskCreate", {"subject": "", "description": "d"}),
        ("TaskCreate", {"subject": "s", "description": "d", "priority": 1}),
        ("TaskList", {"status": "pending"}),
    ],
)
def test_wrong_arguments_do_not_fit_the_schema(name, arguments):
    schema = next(tool.schema for tool in task_tools() if tool.schema.name == name)

    assert not Draft202012Validator(schema.parameters).is_valid(arguments)


async def test_an_empty_plan_is_said_to_be_empty():
    result = await use(Plan(), "TaskList")

    assert result == ("success", "No tasks available.")


async def test_a_task_is_pending_and_dated_by_its_call():
    plan = await plan_of(1)

    assert plan.task("1") == Task(
        id="1", subject="s1", description="d1", metadata={}, created_at=NOW, state="pending"
    )


async def test_parallel_calls_lose_nothing():
    plan = Plan()

    async with asyncio.TaskGroup() as group:
        for number in range(20):
            group.create_task(use(plan, "TaskCreate", subject=f"s{number}", description="d"))

    assert [task.id for task in plan.tasks.tasks] == [str(number) for number in range(1, 21)]


async def test_the_id_of_a_task_that_is_still_mentioned_is_not_given_to_another():
    plan = Plan(
        TasksContext(
            tasks=[
                Task(id="2", subject="s", description="d", metadata={}, blocks=["7"]),
                Task(id="x", subject="s", description="d", metadata={}, blocked_by=["9"]),
                Task(id="9" * 5000, subject="s", description="d", metadata={}),
            ]
        )
    )

    _, text = await use(plan, "TaskCreate", subject="new", description="d")

    assert text == "Task (id=10) created successfully: new"


async def test_the_id_of_a_deleted_task_in_the_middle_is_not_given_to_another():
    plan = await plan_of(3)
    await use(plan, "TaskUpdate", task_id="2", status="deleted")

    _, text = await use(plan, "TaskCreate", subject="new", description="d")

    assert text == "Task (id=4) created successfully: new"


async def test_links_are_written_at_both_ends():
    plan = await plan_of(3)

    result = await use(plan, "TaskUpdate", task_id="2", add_blocks=["3"], add_blocked_by=["1"])

    assert result == ("success", "Update task (id=2) add_blocks, add_blocked_by.")
    assert plan.task("1").blocks == ["2"]
    assert (plan.task("2").blocked_by, plan.task("2").blocks) == (["1"], ["3"])
    assert plan.task("3").blocked_by == ["2"]


async def test_a_task_tells_what_waits_for_it():
    plan = await plan_of(3)
    await use(plan, "TaskUpdate", task_id="1", add_blocks=["2", "3"])

    _, text = await use(plan, "TaskGet", task_id="1")

    assert text.splitlines()[-1] == "Blocks: #2, #3"


async def test_a_link_that_is_there_is_no_update():
    plan = await plan_of(2)
    await use(plan, "TaskUpdate", task_id="1", add_blocks=["2"])
    plan.writes.clear()

    _, text = await use(plan, "TaskUpdate", task_id="2", add_blocked_by=["1", "1"])

    assert text.startswith("No updates were made to the task (id=2).")
    assert plan.writes == []


@pytest.mark.parametrize("name", ["add_blocks", "add_blocked_by"])
async def test_an_update_that_names_unknown_tasks_changes_nothing(name):
    plan = await plan_of(2)

    result = await use(plan, "TaskUpdate", task_id="1", subject="new", **{name: ["2", "7", "8"]})

    assert result == (
        "error",
        "TaskNotFoundError: The tasks (id=7, id=8) do not exist. Nothing was changed.",
    )
    assert plan.writes == []


@pytest.mark.parametrize("name", ["add_blocks", "add_blocked_by"])
async def test_a_task_cannot_wait_for_itself(name):
    plan = await plan_of(1)

    result = await use(plan, "TaskUpdate", task_id="1", owner="me", **{name: ["1"]})

    assert result == (
        "error",
        "TaskCycleError: The task (id=1) cannot wait for itself. Nothing was changed.",
    )
    assert plan.writes == []


async def test_a_circle_through_other_tasks_is_refused():
    plan = await plan_of(3)
    await use(plan, "TaskUpdate", task_id="1", add_blocks=["2"])
    await use(plan, "TaskUpdate", task_id="2", add_blocks=["3"])
    plan.writes.clear()

    result = await use(plan, "TaskUpdate", task_id="3", add_blocks=["1"])

    assert result == (
        "error",
        (
            "TaskCycleError: The task (id=1) cannot wait for the task (id=3), which itself waits for "
            "the task (id=1). Nothing was changed."
        ),
    )
    assert plan.writes == []


async def test_a_circle_within_one_update_is_refused():
    plan = await plan_of(2)

    state, _ = await use(plan, "TaskUpdate", task_id="1", add_blocks=["2"], add_blocked_by=["2"])

    assert state == "error"
    assert plan.writes == []


async def test_completing_a_task_unblocks_those_that_waited():
    plan = await plan_of(3)
    await use(plan, "TaskUpdate", task_id="3", add_blocked_by=["1", "2"])

    await use(plan, "TaskUpdate", task_id="1", status="completed")

    assert plan.task("3").blocked_by == ["2"]
    assert plan.task("1").blocks == []


async def test_a_completed_task_blocks_nothing_new():
    plan = await plan_of(2)
    await use(plan, "TaskUpdate", task_id="1", status="completed")

    _, text = await use(plan, "TaskUpdate", task_id="2", add_blocked_by=["1"], owner="me")

    assert text == "Update task (id=2) owner."
    assert plan.task("2").blocked_by == []


async def test_deleting_a_task_removes_every_mention_of_it():
    plan = await plan_of(3)
    await use(plan, "TaskUpdate", task_id="2", add_blocks=["3"], add_blocked_by=["1"])

    await use(plan, "TaskUpdate", task_id="2", status="deleted")

    assert [(task.id, task.blocks, task.blocked_by) for task in plan.tasks.tasks] == [
        ("1", [], []),
        ("3", [], []),
    ]


async def test_blockers_of_an_imported_plan_that_are_done_or_gone_are_not_shown():
    plan = Plan(
        TasksContext(
            tasks=[
                Task(id="1", subject="a", description="d", metadata={}, state="completed"),
                Task(id="2", subject="b", description="d", metadata={}, blocked_by=["1", "5"]),
            ]
        )
    )

    result = await use(plan, "TaskList")

    assert result == ("success", "1 [completed] a\n2 [pending] b")


async def test_metadata_is_merged_and_null_deletes_a_key():
    plan = Plan()
    await use(
        plan, "TaskCreate", subject="s", description="d", metadata={"a": 1, "b": 2, "kept": None}
    )

    _, text = await use(
        plan, "TaskUpdate", task_id="1", metadata={"a": None, "b": 3, "c": [1], "gone": None}
    )

    assert text == "Update task (id=1) metadata."
    assert plan.task("1").metadata == {"b": 3, "kept": None, "c": [1]}


async def test_every_field_is_changed_and_named_in_a_fixed_order():
    plan = await plan_of(1)

    _, text = await use(
        plan,
        "TaskUpdate",
        owner="me",
        task_id="1",
        metadata={"k": 1},
        status="in_progress",
        description="new d",
        subject="new s",
    )

    assert text == "Update task (id=1) subject, description, status, owner, metadata."
    assert plan.task("1") == Task(
        id="1",
        subject="new s",
        description="new d",
        metadata={"k": 1},
        created_at=NOW,
        state="in_progress",
        owner="me",
    )


async def test_null_means_not_given():
    plan = await plan_of(1)

    _, text = await use(plan, "TaskUpdate", task_id="1", subject=None, status=None, owner=None)

    assert text.startswith("No updates were made")
