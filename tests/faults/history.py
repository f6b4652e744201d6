"""What clients and the nemesis know: what was asked, what was answered, and what was broken when."""

import time
from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Submission:
    """A message that a client sent, perhaps several times with one key."""

    session: str
    text: str
    key: str | None
    replies: set[str] = field(default_factory=set)
    """The replies that were acknowledged for it: one, if all is well."""
    on_busy: str = "enqueue"
    tries: int = 0
    """How often it was sent; each is refused or accepted by itself, one that got lost perhaps late."""
    refused: bool = False
    """Whether a try was refused because the session was busy."""

    @property
    def accepted(self) -> bool:
        """Whether somebody said that it will be answered; otherwise nobody knows."""
        return bool(self.replies)


@dataclass(frozen=True)
class Fault:
    """Something that was broken, by the wall clock, which is the database's too."""

    kind: str
    target: str
    at: float


@dataclass(frozen=True)
class Bereaved:
    """A reply that was being written when its writer was taken away."""

    kind: str
    session: str
    reply: str
    epoch: int
    at: float


@dataclass
class History:
    """Everything that a run knows from outside."""

    seed: int
    submissions: list[Submission] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    bereaved: list[Bereaved] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    """What was wrong by itself: an answer that must not be given, a frame that must not be sent."""
    counts: Counter[str] = field(default_factory=Counter)
    last_fault: float = 0.0
    """When the last fault was over."""

    def fault(self, kind: str, target: str) -> None:
        now = time.time()
        self.faults.append(Fault(kind, target, now))
        self.last_fault = max(self.last_fault, now)

    def over(self) -> None:
        """Say that what was broken is whole again, as far as the nemesis is concerned."""
        self.last_fault = max(self.last_fault, time.time())

    def violation(self, text: str) -> None:
        self.violations.append(f"{text} (seed {self.seed})")

    def sent(self, session: str, text: str, key: str | None) -> Submission:
        submission = Submission(session, text, key)
        self.submissions.append(submission)
        return submission

    @property
    def accepted(self) -> int:
        return sum(each.accepted for each in self.submissions)
