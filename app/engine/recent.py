"""The newest events of busy sessions, in memory: readers that are up to date ask nobody else."""

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

from app.core.records import LogEntry

MOST_BYTES = 32 * 1024 * 1024
"""Of all sessions together; the longest unused goes first."""
MOST_BYTES_OF_ONE = 1024 * 1024
MOST_BYTES_AT_ONCE = 128 * 1024
"""What a reader is given at once: it may hold that for long."""
OVERHEAD_BYTES = 200
"""What an entry takes beside its data, about."""


@dataclass
class _Tail:
    entries: deque[LogEntry] = field(default_factory=deque[LogEntry])
    size: int = 0


class Recent:
    """Holds gapless ends of logs, bounded by their bytes.

    It may forget anything at any time: who finds nothing here reads the store.
    """

    def __init__(self) -> None:
        self._tails: OrderedDict[str, _Tail] = OrderedDict()
        self._size = 0

    def add(self, session_id: str, entries: Sequence[LogEntry]) -> bool:
        """Take in what was appended to a session's log.

        Returns:
            Whether it joins what was here; if not, readers have to look in the store.
        """
        newest = self.newest(session_id)
        if not entries or entries[-1].seq <= newest:
            return False
        tail = self._tails.get(session_id)
        joins = tail is not None and newest + 1 == entries[0].seq
        if tail is not None and not joins:
            # Another replica appended in between: what is here no longer leads up to it.
            self.forget(session_id)
            tail = None
        if tail is None:
            tail = self._tails[session_id] = _Tail()
        for entry in entries:
            tail.entries.append(entry)
            self._grow(tail, _size(entry))
        while tail.size > MOST_BYTES_OF_ONE and len(tail.entries) > 1:
            self._grow(tail, -_size(tail.entries.popleft()))
        self._tails.move_to_end(session_id)
        while self._size > MOST_BYTES and len(self._tails) > 1:
            self.forget(next(iter(self._tails)))
        return joins

    def after(self, session_id: str, seq: int, *, limit: int) -> Sequence[LogEntry]:
        """Return the events directly behind a number, as far as they are here."""
        tail = self._tails.get(session_id)
        if tail is None or not tail.entries:
            return ()
        start = seq + 1 - tail.entries[0].seq
        if not 0 <= start < len(tail.entries):
            return ()
        found: list[LogEntry] = []
        size = 0
        for entry in islice(tail.entries, start, start + limit):
            found.append(entry)
            size += len(entry.data)
            if size >= MOST_BYTES_AT_ONCE:
                break
        return found

    def newest(self, session_id: str) -> int:
        """Return the number of the newest event here; 0 when there is none."""
        tail = self._tails.get(session_id)
        return tail.entries[-1].seq if tail is not None and tail.entries else 0

    def forget(self, session_id: str) -> None:
        """Drop what is here of a session."""
        tail = self._tails.pop(session_id, None)
        if tail is not None:
            self._size -= tail.size

    def _grow(self, tail: _Tail, size: int) -> None:
        tail.size += size
        self._size += size


def _size(entry: LogEntry) -> int:
    return len(entry.data) + OVERHEAD_BYTES
