"""Mends a state that was saved in the middle of something, so that a model can be asked again."""

from app.core.messages import Block, Msg, ToolCallBlock, ToolResultBlock
from app.core.state import AgentState

LOST_RESULT = (
    "<system-reminder>The result of this call was lost: the conversation was interrupted while the "
    "tool ran. It may or may not have taken effect.</system-reminder>"
)


def repair(state: AgentState) -> None:
    """Give every call exactly one result right behind it, and every result its call, in place.

    For states that come from elsewhere. Calls of the last message that wait for a person, or that the
    current reply is about to run, are left alone. Repairing twice changes nothing more.
    """
    last = len(state.context) - 1
    state.context[:] = [
        message
        if message.role != "assistant" or (at == last and _is_under_way(state, message))
        else message.model_copy(update={"content": paired(message.content)})
        for at, message in enumerate(state.context)
    ]


def paired(blocks: list[Block]) -> list[Block]:
    """Return the blocks of a finished message with calls and results paired; itself if it has none.

    A call without a result gets an `interrupted` one, a result without a call is dropped, and of
    several results of one call the first stays.
    """
    if not any(isinstance(block, ToolCallBlock | ToolResultBlock) for block in blocks):
        return blocks
    answered: dict[int, int] = {}
    waiting: dict[str, int] = {}
    for at, block in enumerate(blocks):
        if isinstance(block, ToolCallBlock):
            waiting[block.id] = at
        elif isinstance(block, ToolResultBlock) and block.id in waiting:
            answered[waiting.pop(block.id)] = at
    kept = set(answered.values())
    mended: list[Block] = []
    lost: list[Block] = []
    for at, block in enumerate(blocks):
        match block:
            case ToolResultBlock():
                mended += [block] if at in kept else []
            case ToolCallBlock():
                mended.append(block)
                lost += [] if at in answered else [_lost(block)]
            case _:
                mended += [*lost, block]
                lost.clear()
    return mended + lost


def _is_under_way(state: AgentState, message: Msg) -> bool:
    return message.id == state.reply_id and message.finished_reason is None


def _lost(call: ToolCallBlock) -> ToolResultBlock:
    return ToolResultBlock(id=call.id, name=call.name, output=LOST_RESULT, state="interrupted")
