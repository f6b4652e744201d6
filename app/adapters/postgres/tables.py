"""The tables: every one carries its tenant, times are aware, JSON that is only carried is `json`."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import JSON, JSONB

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

_now = text("clock_timestamp()")
_zero = text("0")


def _time(name: str, *, default: bool = True) -> Column[object]:
    return Column(
        name,
        DateTime(timezone=True),
        nullable=not default,
        server_default=_now if default else None,
    )


agents = Table(
    "agents",
    metadata,
    Column("id", Text, primary_key=True),
    Column("tenant_id", Text, nullable=False),
    Column("version", Integer, nullable=False),
    Column("deleted", Boolean, nullable=False, server_default=text("false")),
    _time("created_at"),
    _time("updated_at"),
    Index("ix_agents_tenant_id_id", "tenant_id", "id", postgresql_where=text("NOT deleted")),
)

agent_versions = Table(
    "agent_versions",
    metadata,
    Column("agent_id", Text, ForeignKey("agents.id", ondelete="CASCADE"), nullable=False),
    Column("version", Integer, nullable=False),
    Column("tenant_id", Text, nullable=False),
    Column("spec", JSON, nullable=False),
    _time("created_at"),
    PrimaryKeyConstraint("agent_id", "version"),
)

sessions = Table(
    "sessions",
    metadata,
    Column("id", Text, primary_key=True),
    Column("tenant_id", Text, nullable=False),
    Column("user_id", Text),
    Column("agent_id", Text, ForeignKey("agents.id"), nullable=False),
    # Null follows the newest version.
    Column("agent_version", Integer),
    Column("title", Text, nullable=False),
    Column("metadata", JSONB, nullable=False, server_default=text("'{}'")),
    Column("environment", JSON, nullable=False, server_default=text("'{}'")),
    Column("environment_version", Integer, nullable=False, server_default=_zero),
    # The lease: one writer, fenced by epoch and owner, by the database's clock alone.
    Column("owner", Text, nullable=False, server_default=text("''")),
    Column("epoch", BigInteger, nullable=False, server_default=_zero),
    Column(
        "lease_until",
        DateTime(timezone=True),
        nullable=False,
        server_default=text("'-infinity'"),
    ),
    Column("next_seq", BigInteger, nullable=False, server_default=text("1")),
    Column("oldest_seq", BigInteger, nullable=False, server_default=text("1")),
    # The state without its context, and up to which event it stands.
    Column("head", JSON, nullable=False),
    Column("head_seq", BigInteger, nullable=False, server_default=_zero),
    Column("answered", Boolean, nullable=False, server_default=text("false")),
    # What is known of unfinished tool calls beyond their blocks; null for nothing.
    Column("calls", JSON),
    Column("state_version", BigInteger, nullable=False, server_default=_zero),
    Column("context_from", BigInteger, nullable=False, server_default=_zero),
    # What it is doing: the reply that runs, how many wait, what somebody asked to stop and whether
    # what it wrote is to be taken back, how many calls wait for somebody outside, and how many messages
    # wait to join the reply.
    Column("reply_id", Text),
    Column("attempts", Integer, nullable=False, server_default=_zero),
    Column("queued", Integer, nullable=False, server_default=_zero),
    Column("interrupt", Text, nullable=False, server_default=text("''")),
    Column("withdraw", Boolean, nullable=False, server_default=text("false")),
    Column("pending", Integer, nullable=False, server_default=_zero),
    Column("inputs", Integer, nullable=False, server_default=_zero),
    Column("input_tokens", BigInteger, nullable=False, server_default=_zero),
    Column("output_tokens", BigInteger, nullable=False, server_default=_zero),
    Column("cache_input_tokens", BigInteger, nullable=False, server_default=_zero),
    Column("cache_creation_input_tokens", BigInteger, nullable=False, server_default=_zero),
    _time("created_at"),
    _time("updated_at"),
    CheckConstraint("queued >= 0", name="queued"),
    CheckConstraint("pending >= 0", name="pending"),
    CheckConstraint("inputs >= 0", name="inputs"),
    Index("ix_sessions_tenant_id_id", "tenant_id", "id"),
    Index("ix_sessions_agent_id", "agent_id"),
    Index("ix_sessions_metadata", "metadata", postgresql_using="gin"),
    Index(
        "ix_sessions_work",
        "id",
        postgresql_where=text(
            "(queued > 0 AND reply_id IS NULL) OR (reply_id IS NOT NULL AND pending = 0)"
        ),
    ),
    # Half-empty pages keep the frequent lease and counter updates within the page (HOT).
    postgresql_with={"fillfactor": "50"},
)


# The tables of a session have no foreign key to it: their rows are written by statements that begin
# with the session's own row, and deleted with it in one transaction. A key would be checked a row.
messages = Table(
    "messages",
    metadata,
    Column("session_id", Text, nullable=False),
    Column("pos", BigInteger, nullable=False),
    Column("tenant_id", Text, nullable=False),
    Column("id", Text, nullable=False),
    # The message without its blocks.
    Column("data", JSON, nullable=False),
    PrimaryKeyConstraint("session_id", "pos"),
    Index("ix_messages_session_id_id", "session_id", "id"),
)

blocks = Table(
    "blocks",
    metadata,
    Column("session_id", Text, nullable=False),
    Column("pos", BigInteger, nullable=False),
    Column("idx", Integer, nullable=False),
    Column("tenant_id", Text, nullable=False),
    Column("data", JSON, nullable=False),
    PrimaryKeyConstraint("session_id", "pos", "idx"),
)

events = Table(
    "events",
    metadata,
    Column("session_id", Text, nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("tenant_id", Text, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("reply_id", Text, nullable=False),
    Column("type", Text, nullable=False),
    Column("data", JSON, nullable=False),
    _time("at"),
    PrimaryKeyConstraint("session_id", "seq"),
)

replies = Table(
    "replies",
    metadata,
    Column("id", Text, primary_key=True),
    Column("tenant_id", Text, nullable=False),
    Column("session_id", Text, nullable=False),
    # Orders the queue, and dates the reply in the log: the number of its MESSAGE_RECEIVED.
    Column("seq", BigInteger, nullable=False),
    Column("message", JSON, nullable=False),
    Column("max_iters", Integer),
    # The runtime context, for tools; gone when the reply ends.
    Column("context", JSON),
    # The version of the agent that writes it, from its beginning to its end.
    Column("agent_version", Integer),
    # The plan when it began, to go back to; null for none.
    Column("tasks", JSON),
    Column("status", Text, nullable=False, server_default=text("'queued'")),
    Column("finished_reason", Text),
    Column("error", JSON),
    Column("input_tokens", BigInteger, nullable=False, server_default=_zero),
    Column("output_tokens", BigInteger, nullable=False, server_default=_zero),
    Column("cache_input_tokens", BigInteger, nullable=False, server_default=_zero),
    Column("cache_creation_input_tokens", BigInteger, nullable=False, server_default=_zero),
    _time("created_at"),
    _time("started_at", default=False),
    _time("finished_at", default=False),
    UniqueConstraint("session_id", "seq"),
    Index("ix_replies_queue", "session_id", "seq", postgresql_where=text("status = 'queued'")),
)

# Messages that wait to join a reply.
inputs = Table(
    "inputs",
    metadata,
    Column("session_id", Text, nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("tenant_id", Text, nullable=False),
    Column("reply_id", Text, nullable=False),
    Column("message_id", Text, nullable=False),
    Column("message", JSON, nullable=False),
    PrimaryKeyConstraint("session_id", "seq"),
)

# Calls that wait for a person, or for somebody else to execute them.
pending_calls = Table(
    "pending_calls",
    metadata,
    Column("session_id", Text, nullable=False),
    Column("reply_id", Text, nullable=False),
    Column("call_id", Text, nullable=False),
    Column("tenant_id", Text, nullable=False),
    Column("pos", Integer, nullable=False),
    Column("data", JSON, nullable=False),
    _time("at"),
    PrimaryKeyConstraint("session_id", "reply_id", "call_id"),
)

idempotency_keys = Table(
    "idempotency_keys",
    metadata,
    Column("tenant_id", Text, nullable=False),
    Column("scope", Text, nullable=False),
    Column("key", Text, nullable=False),
    Column("fingerprint", LargeBinary, nullable=False),
    Column("answer", JSON),
    _time("created_at"),
    PrimaryKeyConstraint("tenant_id", "scope", "key"),
    Index("ix_idempotency_keys_created_at", "created_at"),
)
