"""Who is asking."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Caller:
    """Who asks, and whose things they see.

    Attributes:
        tenant: Everything that is kept belongs to one.
    """

    tenant: str


EVERYONE = Caller(tenant="default")
"""With `BEARINGS_AUTH=none` all callers are one tenant."""
