"""What a prompt lookup proposes anywhere along a recorded text, also from within a block."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence


class NgramIndex:
    """The n-grams of one whole text with all their occurrences: `PromptLookupDrafter.find` at any position, in any order.

    A drafter at work indexes its text as it grows. Replay asks in any order, and about positions inside a block, where
    only the text before the block is indexed yet. Positions count new tokens: position i follows prompt + i tokens.
    """

    def __init__(
        self, text: Sequence[int], prompt_length: int, max_ngram: int, min_ngram: int, usable_ids: int | None = None
    ) -> None:
        self.text = list(text)
        self.prompt_length = prompt_length
        self.sizes = range(max_ngram, min_ngram - 1, -1)
        self.usable_ids = usable_ids
        self._ends: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for end in range(1, len(self.text)):
            for size in range(min_ngram, min(max_ngram, end) + 1):
                self._ends[tuple(self.text[end - size : end])].append(end)

    def source(self, position: int, verified: int) -> int:
        """Index in the text of the first id proposed at `position` while the block began at `verified`; -1 for none."""
        latest = self._latest(position, self.prompt_length + verified)
        # The longest match decides, even if what follows it cannot be proposed.
        return latest if latest >= 0 and self._usable(latest) else -1

    def _latest(self, position: int, limit: int) -> int:
        """Where the longest n-gram ending at `position` went on when it last occurred before `limit`; -1: never."""
        length = self.prompt_length + position
        for size in self.sizes:
            ends = self._ends.get(tuple(self.text[length - size : length])) if size <= length else None
            found = bisect_left(ends, limit) if ends else 0
            if found:
                return ends[found - 1]
        return -1

    def tokens(self, position: int, source: int, n: int) -> list[int]:
        """Up to n ids copied from `source`; past the end of the text so far the copy repeats itself."""
        period = self.prompt_length + position - source
        found: list[int] = []
        for i in range(n if source >= 0 else 0):
            index = source + i % period
            if not self._usable(index):
                break
            found.append(self.text[index])
        return found

    def match(self, position: int, source: int) -> tuple[int, int]:
        """(how many copied ids equal the text itself, the first id that does not; -1 if the text or the copy ends)."""
        period = self.prompt_length + position - source
        start = self.prompt_length + position
        for i in range(len(self.text) - start):
            index = source + i % period
            if not self._usable(index):
                return i, -1
            if self.text[index] != self.text[start + i]:
                return i, self.text[index]
        return len(self.text) - start, -1

    def departures(self) -> list[tuple[int, int]]:
        """Every (position, id) at which some proposal stops agreeing with the text, whatever block it is made in."""
        found = set()
        for start in range(len(self.text) - self.prompt_length):
            source = self._latest(start, self.prompt_length + start)
            while source >= 0:
                length, token = self.match(start, source)
                if token >= 0:
                    found.add((start + length, token))
                # A block that began no later than this source does not know it yet, and takes an earlier one.
                source = self._latest(start, source) if source >= self.prompt_length else -1
        return sorted(found)

    def available(self, position: int, source: int) -> int:
        """How many ids can be copied before one that is not usable; 2**30 if there is none."""
        period = self.prompt_length + position - source
        for i in range(period):
            if not self._usable(source + i):
                return i
        return 1 << 30

    def _usable(self, index: int) -> bool:
        return self.usable_ids is None or self.text[index] < self.usable_ids
