"""Whether the service is there."""

from fastapi import APIRouter, Response
from fastapi.responses import RedirectResponse

from app.http.dependencies import EngineParts
from app.http.schemas import Health

router = APIRouter(tags=["health"])


@router.get("/healthz")
async def alive() -> Health:
    """Tell that the process runs; touches nothing."""
    return Health(status="ok")


@router.get("/readyz", responses={503: {"model": Health}})
async def ready(response: Response, engine: EngineParts) -> Health:
    """Tell whether requests can be served: the database answers, and the process is not ending."""
    if await engine.is_ready():
        return Health(status="ok")
    response.status_code = 503
    response.headers["Retry-After"] = "1"
    return Health(status="unavailable")


@router.get("/", include_in_schema=False)
async def root() -> RedirectResponse:
    """Lead a person who opens the address to the documentation."""
    return RedirectResponse("/docs")
