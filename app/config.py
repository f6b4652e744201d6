"""Settings: read once from the environment, by bootstrap."""

from datetime import timedelta
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import parse_qs, urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

LOOPBACK = {"127.0.0.1", "::1", "localhost"}
TLS_FILES = {"ssl_ca_certs", "ssl_certfile", "ssl_keyfile"}
"""What an address of Redis may say behind its `?`: files for TLS."""


class Settings(BaseSettings):
    """What an operator sets, each as `BEARINGS_…`."""

    model_config = SettingsConfigDict(
        env_prefix="BEARINGS_",
        extra="ignore",
        # An address that is refused may hold a password.
        hide_input_in_errors=True,
    )

    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65535)
    database_url: str | None = None
    """Where Postgres is; an embedded one is started when not set."""
    database_pool: int = Field(default=10, ge=2, le=200)
    """Most database connections of this process, beside one for wake-ups."""
    database_pooler: bool = False
    """A pooler in transaction mode (PgBouncer) stands before the database."""
    wakeups_url: SecretStr | None = None
    """A Redis that carries wake-ups between replicas; Postgres does when not set."""
    data_dir: Path = Path(".bearings")
    """Where the embedded Postgres keeps its data."""
    model: str = Field(default="scripted:demo", pattern=r"^[a-z][a-z0-9_-]{0,31}:.+$")
    """`provider:name`, for agents that name no model."""
    model_base_url: str | None = None
    """Where the provider of the default model is."""
    model_api_key: SecretStr | None = None
    egress_allow: Annotated[list[IPv4Network | IPv6Network], NoDecode] = []
    """CIDRs beyond public addresses that agents' own URLs may reach, comma-separated."""
    cors_origins: Annotated[list[str], NoDecode] = []
    """Origins whose pages may call from a browser, comma-separated, such as `https://app.example`."""
    auth: Literal["none"] = "none"
    """Who may call; `none` trusts everyone who reaches the port."""
    auth_none_insist: bool = False
    """Allow `auth=none` on a host that is not loopback: something in front decides who may call."""
    lease_ttl: float = Field(default=20, ge=2, le=120)
    """Seconds after which the session of a dead replica is taken over."""
    drain_grace: float = Field(default=25, ge=0, le=600)
    """Seconds that replies may use to reach a step's end when the process is told to stop."""
    event_retention: float | None = Field(default=None, gt=0)
    """Hours after which the events of replies that have ended are dropped; kept for ever when not set.

    Messages and states stay."""
    capacity: int = Field(default=200, ge=1, le=10_000)
    """Most replies that this process writes at once."""
    log_format: Literal["text", "json"] = "text"
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @field_validator("wakeups_url")
    @classmethod
    def _redis(cls, url: SecretStr | None) -> SecretStr | None:
        if url is None or not url.get_secret_value():
            return None
        if not _leads_to_redis(url.get_secret_value()):
            files = ", ".join(sorted(TLS_FILES))
            raise ValueError(
                "write redis://[user:password@]host[:port][/number], or rediss:// for TLS, which may "
                f"be followed by ? and {files}; what is special in a password as %XX"
            )
        return url

    @field_validator("egress_allow", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        if isinstance(value, str):
            return [ip_network(each.strip()) for each in value.split(",") if each.strip()]
        return value

    @field_validator("cors_origins", mode="before")
    @classmethod
    def _split_origins(cls, value: object) -> object:
        if isinstance(value, str):
            return [each.strip().rstrip("/") for each in value.split(",") if each.strip()]
        return value

    @field_validator("cors_origins")
    @classmethod
    def _no_wildcard(cls, origins: list[str]) -> list[str]:
        if any("://" not in origin or "*" in origin for origin in origins):
            raise ValueError("name each origin whole, such as https://app.example")
        return origins

    @model_validator(mode="after")
    def _open_only_where_safe(self) -> Self:
        if self.auth == "none" and self.host not in LOOPBACK and not self.auth_none_insist:
            raise ValueError(
                f"BEARINGS_AUTH=none would let everyone who reaches {self.host} in. Listen on "
                "127.0.0.1, or set BEARINGS_AUTH_NONE_INSIST=true when something in front of the "
                "service decides who may call."
            )
        return self

    @property
    def lease_time(self) -> timedelta:
        """The lease's time as a duration."""
        return timedelta(seconds=self.lease_ttl)

    @property
    def event_age(self) -> timedelta | None:
        """How old events may get."""
        return None if self.event_retention is None else timedelta(hours=self.event_retention)

    @property
    def grace(self) -> timedelta:
        """The drain's grace as a duration."""
        return timedelta(seconds=self.drain_grace)


def _leads_to_redis(url: str) -> bool:
    try:
        parts = urlsplit(url)
        port, asked = parts.port, parse_qs(parts.query, strict_parsing=bool(parts.query))
    except ValueError:
        return False
    return (
        bool(parts.hostname)
        and port != 0
        and not parts.fragment
        and (parts.path in {"", "/"} or parts.path.removeprefix("/").isdecimal())
        and parts.scheme in {"redis", "rediss"}
        and asked.keys() <= (TLS_FILES if parts.scheme == "rediss" else set())
    )
