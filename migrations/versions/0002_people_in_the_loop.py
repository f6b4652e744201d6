"""calls that wait for people, messages that join a reply, and replies that are taken back.

Expand only: replicas of the release before go on working beside these. They leave a session whose reply
waits alone, because its lease never ends by itself.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0002"
down_revision: str | None = "0001"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

BUSY = "(queued > 0 AND reply_id IS NULL) OR (reply_id IS NOT NULL AND pending = 0)"


def upgrade() -> None:
    zero, never = sa.text("0"), sa.text("false")
    op.add_column("sessions", sa.Column("calls", postgresql.JSON()))
    for name in ("pending", "inputs"):
        column = sa.Column(name, sa.Integer(), nullable=False, server_default=zero)
        op.add_column("sessions", column)
        op.create_check_constraint(op.f(f"ck_sessions_{name}"), "sessions", f"{name} >= 0")
    withdraw = sa.Column("withdraw", sa.Boolean(), nullable=False, server_default=never)
    op.add_column("sessions", withdraw)
    op.add_column("replies", sa.Column("tasks", postgresql.JSON()))
    op.drop_index("ix_sessions_work", "sessions")
    op.create_index("ix_sessions_work", "sessions", ["id"], postgresql_where=sa.text(BUSY))
    op.create_table(
        "inputs",
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("reply_id", sa.Text(), nullable=False),
        sa.Column("message_id", sa.Text(), nullable=False),
        sa.Column("message", postgresql.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("session_id", "seq", name=op.f("pk_inputs")),
    )
    op.create_table(
        "pending_calls",
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("reply_id", sa.Text(), nullable=False),
        sa.Column("call_id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("pos", sa.Integer(), nullable=False),
        sa.Column("data", postgresql.JSON(), nullable=False),
        sa.Column(
            "at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint("session_id", "reply_id", "call_id", name=op.f("pk_pending_calls")),
    )


def downgrade() -> None:
    op.drop_table("pending_calls")
    op.drop_table("inputs")
    op.drop_index("ix_sessions_work", "sessions")
    op.create_index(
        "ix_sessions_work",
        "sessions",
        ["id"],
        postgresql_where=sa.text("queued > 0 OR reply_id IS NOT NULL"),
    )
    op.drop_column("replies", "tasks")
    for name in ("withdraw", "inputs", "pending", "calls"):
        op.drop_column("sessions", name)
