"""Idempotency keys: the first request's answer is kept in the same transaction as its work."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import asyncpg
from pydantic import BaseModel

from app.adapters.postgres.database import Database, Transaction
from app.core.errors import KeyInFlight, KeyReused, Unavailable
from app.ports.stores import Made, Once

Answer = TypeVar("Answer", bound=BaseModel)

_TAKE = """
INSERT INTO idempotency_keys (tenant_id, scope, key, fingerprint)
VALUES (:tenant, :scope, :key, :fingerprint)
ON CONFLICT DO NOTHING RETURNING 1
"""
_KEEP = """
UPDATE idempotency_keys SET answer = CAST(:answer AS json)
WHERE tenant_id = :tenant AND scope = :scope AND key = :key
"""
_FIND = """
SELECT fingerprint, answer::text AS answer FROM idempotency_keys
WHERE tenant_id = :tenant AND scope = :scope AND key = :key
"""
_FORGET = """
DELETE FROM idempotency_keys WHERE created_at < clock_timestamp() - interval '48 hours'
"""


async def happen_once(
    database: Database,
    tenant: str,
    given: Once | None,
    kind: type[Answer],
    work: Callable[[Transaction], Awaitable[Answer]],
) -> Made[Answer]:
    """Do the work in a transaction, or give the answer of the request that did it.

    A second request with the key waits for the first one's transaction, at most two seconds.

    Raises:
        KeyReused: The key was used with another request.
        KeyInFlight: The first request has not ended in time.
    """
    async with database.begin() as transaction:
        if given is None:
            return Made(await work(transaction))
        names = {"tenant": tenant, "scope": given.scope, "key": given.key}
        try:
            await transaction.run("SET LOCAL lock_timeout = '2s'", {})
            mine = await transaction.first(_TAKE, {**names, "fingerprint": given.fingerprint})
        except asyncpg.LockNotAvailableError as error:
            raise KeyInFlight from error
        await transaction.run("SET LOCAL lock_timeout = DEFAULT", {})
        if mine is not None:
            answer = await work(transaction)
            await transaction.run(_KEEP, {**names, "answer": answer.model_dump_json()})
            return Made(answer)
        kept = await transaction.first(_FIND, names)
    if kept is None or kept.answer is None:
        raise Unavailable("The first request with this Idempotency-Key failed; send it again.")
    if bytes(kept.fingerprint) != given.fingerprint:
        raise KeyReused
    return Made(kind.model_validate_json(kept.answer), replayed=True)


async def forget_old_keys(database: Database) -> None:
    """Drop keys older than two days; they are promised for one."""
    await database.run(_FORGET, {})
