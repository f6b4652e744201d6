"""Pages of other origins: let in when the operator names them, and then told everything."""

import pytest
from pydantic import ValidationError

from app.config import Settings
from tests.support.service import Service, serving

PAGE = "https://app.example"


async def test_no_other_origin_is_let_in_unless_named(service: Service) -> None:
    answer = await service.client.get("/v1/agents", headers={"Origin": PAGE})

    assert "access-control-allow-origin" not in answer.headers


async def test_a_named_origin_may_send_and_read(database_url: str) -> None:
    async with serving(database_url=database_url, cors_origins=[PAGE]) as service:
        asked = await service.client.options(
            "/v1/sessions",
            headers={
                "Origin": PAGE,
                "Access-Control-Request-Method": "POST",
                "Access-Control-Request-Headers": "content-type,idempotency-key",
            },
        )
        made = await service.client.post(
            "/v1/agents", json={"name": "Friday"}, headers={"Origin": PAGE}
        )
        refused = await service.client.get("/v1/agents/none", headers={"Origin": PAGE})
        other = await service.client.get("/v1/agents", headers={"Origin": "https://evil.example"})

    assert asked.status_code == 200
    assert "idempotency-key" in asked.headers["access-control-allow-headers"].lower()
    assert made.headers["access-control-allow-origin"] == PAGE
    assert "Location" in made.headers["access-control-expose-headers"]
    assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (404, PAGE)
    assert "access-control-allow-origin" not in other.headers


@pytest.mark.parametrize("origin", ["*", "https://*.example", "app.example"])
def test_an_origin_is_named_whole(origin: str) -> None:
    with pytest.raises(ValidationError, match="name each origin whole"):
        Settings(cors_origins=[origin])


def test_origins_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BEARINGS_CORS_ORIGINS", "https://a.example/, https://b.example")

    assert Settings().cors_origins == ["https://a.example", "https://b.example"]
