"""Which of several engines a request goes to: the one with the fewest tokens in flight, or the one that has its prefix cached."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence

BLOCK = 16
"""Tokens of a block of vLLM's prefix cache: shorter prefixes are not shared."""


class Router:
    """Remembers which engine has seen which prefix.

    A request follows the longest prefix that an engine has seen, unless that engine has more than `slack` tokens in
    flight beyond the least busy one: a prefill that is saved is worth less than an idle engine. `remembered` bounds the
    memory, in blocks.
    """

    def __init__(self, slack: int, remembered: int = 100_000) -> None:
        self.slack, self.remembered = slack, remembered
        self._seen: OrderedDict[int, int] = OrderedDict()

    def choose(self, token_ids: Sequence[int], loads: Mapping[int, int]) -> int:
        """The engine for a prompt, among the keys of `loads`, which are their tokens in flight. At least one engine."""
        blocks = _blocks(token_ids)
        lowest = min(loads.values())
        chosen: int | None = None
        for block in reversed(blocks):
            known = self._seen.get(block)
            if known is not None and known in loads and loads[known] <= lowest + self.slack:
                chosen = known
                break
        if chosen is None:
            chosen = min(engine for engine, load in loads.items() if load == lowest)
        for block in blocks:
            self._seen[block] = chosen
            self._seen.move_to_end(block)
        while len(self._seen) > self.remembered:
            self._seen.popitem(last=False)
        return chosen

    def forget(self, engine: int | None = None) -> None:
        """Forget what an engine has seen, or all of them: its cache is empty."""
        self._seen = OrderedDict((block, seen) for block, seen in self._seen.items() if engine is not None and seen != engine)


def _blocks(token_ids: Sequence[int]) -> list[int]:
    """A number for each whole block of the prompt, which stands for all tokens up to its end."""
    hashes: list[int] = []
    last = 0
    for start in range(0, len(token_ids) - BLOCK + 1, BLOCK):
        last = hash((last, *token_ids[start : start + BLOCK]))
        hashes.append(last)
    return hashes
