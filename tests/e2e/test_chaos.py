"""The demonstration of the README does what it says."""

from app.chaos import demonstrate


async def test_a_client_sees_every_event_once_when_the_replica_it_read_from_is_killed() -> None:
    lines: list[str] = []
    whole = await demonstrate(lines.append, ttl=2, gently=False)

    assert whole, lines
    assert any("REPLY_RESUMED" in line for line in lines)
    assert lines[-1].endswith("no gap, no double, one end, the whole answer")
