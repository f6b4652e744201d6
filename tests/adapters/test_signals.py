"""Wake-ups over a carrier that is written: it can be held, and it fails when told to."""

import asyncio
from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from app.adapters import signals
from app.adapters.signals import CoalescedSignals


class Written:
    """A carrier in the test's hand."""

    def __init__(self) -> None:
        self.published: list[str] = []
        self.open = asyncio.Event()
        self.open.set()
        self.tried = asyncio.Event()
        self.fails = 0
        self.listens = 0
        self.on_payload: Callable[[str], None] = print
        self.closed = False

    async def publish(self, payload: str) -> None:
        self.tried.set()
        await self.open.wait()
        if self.fails:
            self.fails -= 1
            raise OSError("away")
        self.published.append(payload)

    async def listen(self, on_payload: Callable[[str], None], on_ready: Callable[[], None]) -> None:
        self.listens += 1
        if self.fails:
            self.fails -= 1
            raise OSError("away")
        self.on_payload = on_payload
        on_ready()
        await asyncio.Event().wait()

    async def close(self) -> None:
        self.closed = True


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not holds():
            await asyncio.sleep(0.005)


def ignore(topic: str, subject: str) -> None:
    pass


async def test_the_first_goes_at_once_and_what_comes_meanwhile_goes_together() -> None:
    carrier = Written()
    carrier.open.clear()
    sent = CoalescedSignals(carrier, name="me", on_signal=ignore)
    await sent.start()
    sent.send("grown", "a")
    await asyncio.wait_for(carrier.tried.wait(), 30)
    for subject in "bcb":
        sent.send("grown", subject)
    carrier.open.set()
    await until(lambda: len(carrier.published) == 2)
    await sent.stop()

    assert carrier.published == ["me grown:a", "me grown:b grown:c"]
    assert carrier.closed


async def test_a_carrier_that_is_away_is_logged_once_and_tried_again() -> None:
    carrier = Written()
    carrier.fails = 3
    with capture_logs() as logs:
        sent = CoalescedSignals(carrier, name="me", on_signal=ignore)
        await sent.start()
        await until(lambda: carrier.listens == 4)
        carrier.fails = 3
        while not carrier.published:
            sent.send("grown", "a")
            await asyncio.sleep(0.005)
        await sent.stop()

    assert [(log["log_level"], log["way"]) for log in logs] == [
        ("warning", "listening"),
        ("info", "listening"),
        ("warning", "sending"),
        ("info", "sending"),
    ]


async def test_what_waits_for_a_carrier_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "MOST_WAITING", 3)
    carrier = Written()
    sent = CoalescedSignals(carrier, name="me", on_signal=ignore)
    for subject in "abcdef":
        sent.send("grown", subject)
    await sent.start()
    await sent.stop()

    assert carrier.published == ["me grown:a grown:b grown:c"]


async def test_a_carrier_that_is_stuck_does_not_hold_the_end_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(signals, "LAST_SECONDS", 0.05)
    carrier = Written()
    carrier.open.clear()
    sent = CoalescedSignals(carrier, name="me", on_signal=ignore)
    await sent.start()
    sent.send("grown", "a")
    async with asyncio.timeout(30):
        await sent.stop()

    assert carrier.published == []
    assert carrier.closed


@pytest.mark.parametrize("payload", ["", " ", ":", "you", "you grown", "you ::: \ufffd", "me a:b"])
async def test_whatever_is_on_the_wire_breaks_nothing(payload: str) -> None:
    heard: list[tuple[str, str]] = []
    carrier = Written()
    sent = CoalescedSignals(carrier, name="me", on_signal=lambda *each: heard.append(each))
    await sent.start()
    await until(lambda: carrier.listens == 1)
    carrier.on_payload(payload)
    carrier.on_payload("you grown:ses_1")
    await sent.stop()

    assert heard[-1] == ("grown", "ses_1")
    assert ("a", "b") not in heard
