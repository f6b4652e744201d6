"""What this installation offers to agents."""

from fastapi import APIRouter

from app.http.dependencies import EngineParts
from app.http.schemas import List, ToolGroup

router = APIRouter(prefix="/v1", tags=["catalogue"])


@router.get("/tools")
async def tools(engine: EngineParts) -> List[ToolGroup]:
    """List the built-in groups of tools that `tools.builtin` may name."""
    groups = [
        ToolGroup(
            name=name,
            tools=[
                {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": tool.parameters,
                }
                for tool in tools
            ],
        )
        for name, tools in engine.tools.items()
    ]
    return List(data=groups, next_cursor=None)
