"""Tool use: the policy may look words up in a table while it answers.

Generation stops after `</lookup>`, the word is looked up, and what the table says is appended with `trainable=False`:
no log-probs, loss mask 0. The policy is trained on when and what to ask, never on the reply. Put a search or a
database behind `find`; an `await` there lets the other samples generate meanwhile.
"""

from __future__ import annotations

import re
from typing import Any

import vime.api
from vime.api import Engine, Sample, SamplingParams, Status, encode_prompt, hookimpl

STATUS = {"stop": Status.COMPLETED, "length": Status.TRUNCATED, "abort": Status.ABORTED}


class Lookup:
    """Generates in turns: up to a question, then the reply, then on."""

    class Settings(vime.api.Settings):
        table: dict[str, str] = {}  # noqa: RUF012 - pydantic copies it for each object
        """Replies by word, in lower case."""
        most: int = 3
        """Questions of one answer; the marks of later ones are text like any other."""

    def __init__(self, settings: Lookup.Settings) -> None:
        self.settings = settings

    @hookimpl
    async def custom_generate(self, args: Any, sample: Sample, sampling_params: SamplingParams, engine: Engine) -> Sample:
        """One answer, with its questions and their replies."""
        sample.tokens = sample.tokens or encode_prompt(engine.tokenizer, sample.prompt)
        limit = sampling_params.get("max_new_tokens", args.rollout_max_response_len)
        asked = 0
        while (left := limit - sample.response_length) > 0:
            params = SamplingParams(**sampling_params)
            params["max_new_tokens"] = left
            params["stop"] = [*(sampling_params.get("stop") or []), "</lookup>"]
            if (seed := sampling_params.get("seed")) is not None:
                params["seed"] = seed + asked  # or every turn would draw the same random numbers
            turn = await engine.generate(sample.tokens, params)
            text = engine.tokenizer.decode(turn.token_ids, skip_special_tokens=True)  # turn.text lacks the stop string
            sample.append_response_tokens(
                tokens=turn.token_ids, log_probs=turn.log_probs, text=text, meta_info={"weight_version": turn.weight_version}
            )
            sample.status = STATUS[turn.finish_reason]
            question = re.search(r"<lookup>([^<]*)</lookup>\s*$", sample.response)
            if sample.status is not Status.COMPLETED or question is None or asked == self.settings.most:
                return sample
            asked += 1
            reply = f"[{await self.find(question[1])}] "
            sample.append_response_tokens(tokens=engine.tokenizer.encode(reply, add_special_tokens=False), trainable=False, text=reply)
        sample.status = Status.TRUNCATED
        return sample

    async def find(self, word: str) -> str:
        """What the tool says."""
        return self.settings.table.get(word.strip().lower(), "nothing found")
