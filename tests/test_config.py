"""Settings: what an operator may write, and what is never shown."""

import pytest
from pydantic import ValidationError

from app.config import Settings


@pytest.mark.parametrize(
    "url",
    [
        "redis://127.0.0.1",
        "redis://redis.internal:6380/",
        "redis://user:p%40ss%2Fword@redis:6379/15",
        "rediss://:secret@[::1]:6380/0",
        "rediss://redis?ssl_ca_certs=/etc/ca.pem&ssl_certfile=/etc/me.pem&ssl_keyfile=/etc/me.key",
    ],
)
def test_an_address_that_leads_to_redis_is_taken(url: str) -> None:
    taken = Settings(wakeups_url=url).wakeups_url

    assert taken is not None
    assert taken.get_secret_value() == url
    assert url not in repr(Settings(wakeups_url=url))


def test_an_empty_address_is_none() -> None:
    assert Settings(wakeups_url="").wakeups_url is None


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:6379",
        "http://:hunter2@redis",
        "redis://",
        "redis://:hunter2@redis:port",
        "redis://:hunter2@redis:0",
        "redis://:hunter2@redis:99999",
        "redis://:hun/ter2@redis",
        "redis://:hunter2@redis/name",
        "redis://:hunter2@redis/0/1",
        "redis://:hunter2@redis?ssl_ca_certs=/etc/ca.pem",
        "rediss://:hunter2@redis?ssl_cert_reqs=none",
        "rediss://:hunter2@redis?ssl_ca_certs",
        "redis://:hunter2@redis#0",
        "redis://:hunter2@[::1",
    ],
)
def test_another_address_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(ValidationError, match="redis://") as refused:
        Settings(wakeups_url=url)

    assert "hunter2" not in str(refused.value)
    assert "ter2" not in str(refused.value)
