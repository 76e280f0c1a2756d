"""What is left of a request that is taken out of an engine and goes on later: the same request, over what it has so far."""

from __future__ import annotations

import hashlib

from vime.engine.base import SamplingParams


def rest_of(params: SamplingParams, done: int) -> SamplingParams:
    """The parameters of the rest of a request, `done` tokens of which are there and become a part of its prompt.

    Limits count from the first token of the whole request. The seed is another one, a function of the old one and
    `done`: the same one would draw the same random numbers again.
    """
    rest = params.copy()
    if done == 0:
        return rest
    if "max_new_tokens" in params:
        rest["max_new_tokens"] = max(1, params["max_new_tokens"] - done)
    rest["min_new_tokens"] = max(0, (params.get("min_new_tokens") or 0) - done)
    seed = params.get("seed")
    if seed is not None:
        digest = hashlib.blake2b(f"{seed}/{done}".encode(), digest_size=8).digest()
        rest["seed"] = int.from_bytes(digest, "big") >> 1
    return rest
