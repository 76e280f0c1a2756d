"""A multi-turn agent in an environment: the policy guesses a number and is told "higher" or "lower".

Each turn is a request to the engine; what the environment says is appended with `trainable=False`. The environment
also gives the reward: a reward that `custom_generate` sets is kept, so the run needs no reward plugin. Here it is 1
for the right number at once, less for each further guess, 0 for none.

The number comes from the label. An environment that takes its time (a sandbox, a browser) is awaited in the place of
`reply`.
"""

from __future__ import annotations

import re
from typing import Any

import vime.api
from vime.api import Engine, Sample, SamplingParams, Status, encode_prompt, hookimpl

STATUS = {"stop": Status.COMPLETED, "length": Status.TRUNCATED, "abort": Status.ABORTED}


class GuessAgent:
    """Plays one game for each sample."""

    class Settings(vime.api.Settings):
        turns: int = 4
        """Guesses of a game."""

    def __init__(self, settings: GuessAgent.Settings) -> None:
        self.settings = settings

    @hookimpl
    async def custom_generate(self, args: Any, sample: Sample, sampling_params: SamplingParams, engine: Engine) -> Sample:
        """One game: its tokens, status and reward."""
        secret = int(sample.label)
        if sample.response_length:
            sample.reset_for_generation()  # a game that was interrupted begins anew: nobody remembers its turn
        sample.tokens = encode_prompt(engine.tokenizer, sample.prompt)
        limit = sampling_params.get("max_new_tokens", args.rollout_max_response_len)
        for turn in range(self.settings.turns):
            left = limit - sample.response_length
            if left <= 0:
                sample.status = Status.TRUNCATED
                break
            params = SamplingParams(**sampling_params)
            params["max_new_tokens"] = left
            if (seed := sampling_params.get("seed")) is not None:
                params["seed"] = seed + turn
            answer = await engine.generate(sample.tokens, params)
            sample.append_response_tokens(
                tokens=answer.token_ids, log_probs=answer.log_probs, text=answer.text, meta_info={"weight_version": answer.weight_version}
            )
            sample.status = STATUS[answer.finish_reason]
            if sample.status is Status.ABORTED:
                return sample  # no reward: the game is not over
            if sample.status is Status.TRUNCATED:
                break
            said = reply(answer.text, secret)
            if said is None:
                sample.reward = 1 - turn / self.settings.turns
                return sample
            if turn + 1 < self.settings.turns:
                tokens = engine.tokenizer.encode(said, add_special_tokens=False)
                sample.append_response_tokens(tokens=tokens, trainable=False, text=said)
        sample.reward = 0.0
        return sample


def reply(text: str, secret: int) -> str | None:
    """What the environment says to a guess; None where it is right."""
    numbers = re.findall(r"-?\d{1,9}", text)
    if not numbers:
        return "\na number, please\n"
    guess = int(numbers[-1])
    return None if guess == secret else "\nhigher\n" if guess < secret else "\nlower\n"
