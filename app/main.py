"""The ASGI application: routes, error handlers, lifespan."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware

from app import bootstrap
from app.config import Settings
from app.engine.ids import new_id
from app.http import errors, openapi
from app.http.guard import Guard
from app.http.routes import (
    agents,
    answers,
    catalogue,
    events,
    health,
    messages,
    replies,
    sessions,
    state,
)

REQUEST_HEADERS = [
    "Accept",
    "Authorization",
    "Content-Type",
    "Idempotency-Key",
    "If-Match",
    "Last-Event-ID",
    "Prefer",
    "X-Request-Id",
]
RESPONSE_HEADERS = ["ETag", "Idempotency-Replayed", "Location", "Retry-After", "X-Request-Id"]
"""What a page of another origin may send and read, where the operator lets it in."""

DESCRIPTION = """
Agents that keep their bearings. Create an agent, begin a session, send a message, read the events.

Errors are problem documents (RFC 9457) with a stable `code`.
Lists are `{"data": […], "next_cursor": …}`.
Every POST that makes something takes an `Idempotency-Key`. Ids are prefixed and sort by time.
Where there is a choice the answer's type follows `Accept`; one that allows none is disregarded.
"""


def create_app(settings: Settings | None = None) -> FastAPI:
    """Make the application.

    Args:
        settings: What an operator set; read from the environment when not given.
    """
    given = settings or Settings()
    bootstrap.configure_logging(given)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None, None]:
        async with bootstrap.engine(given) as engine:
            app.state.engine = engine
            yield

    app = FastAPI(
        title="Bearings",
        version="1",
        description=DESCRIPTION,
        lifespan=lifespan,
        redirect_slashes=False,
    )
    for each in (
        agents,
        sessions,
        messages,
        answers,
        events,
        replies,
        state,
        catalogue,
        health,
    ):
        app.include_router(each.router)
    errors.install(app)
    openapi.install(app)
    app.add_middleware(Guard, new_id=new_id)
    if given.cors_origins:
        # Outermost, so that a page can read a refusal too.
        app.add_middleware(
            CORSMiddleware,
            allow_origins=given.cors_origins,
            allow_methods=["GET", "POST", "PUT", "PATCH", "DELETE"],
            allow_headers=REQUEST_HEADERS,
            expose_headers=RESPONSE_HEADERS,
            max_age=600,
        )
    return app
