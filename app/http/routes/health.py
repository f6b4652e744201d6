"""Whether the service is there."""

from fastapi import APIRouter
from fastapi.responses import RedirectResponse

from app.core.errors import Unavailable
from app.http.dependencies import EngineParts
from app.http.schemas import Health

router = APIRouter(tags=["health"])


@router.get("/healthz")
async def alive() -> Health:
    """Tell that the process runs; touches nothing."""
    return Health()


@router.get("/readyz", responses={503: {"description": "Not now."}})
async def ready(engine: EngineParts) -> Health:
    """Tell whether requests can be served: the database answers, and the process is not ending."""
    if not await engine.is_ready():
        raise Unavailable("The database is out of reach, or the process is ending.")
    return Health()


@router.get("/", include_in_schema=False)
async def root() -> RedirectResponse:
    """Lead a person who opens the address to the documentation."""
    return RedirectResponse("/docs")
