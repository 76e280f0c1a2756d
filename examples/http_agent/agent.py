"""An agent that only speaks HTTP: it asks the policy through the OpenAI client, and asks once more.

Any agent framework with a base URL fits in here. The tokens that are trained are those that the engine generated for the
session, whatever the agent does with the text.
"""

from __future__ import annotations

from typing import Any

from openai import AsyncOpenAI

from vime.api import Sample, SamplingParams, http_session

SECOND_QUESTION = "Check it, and answer once more."


async def generate(args: Any, sample: Sample, sampling_params: SamplingParams) -> list[Sample]:
    """`--custom-generate-function-path ./agent.py:generate --serve-engine`"""
    with http_session(sample, sampling_params) as session:
        async with AsyncOpenAI(base_url=session.base_url, api_key="none") as client:
            messages: list[Any] = [{"role": "user", "content": sample.prompt}]
            first = await client.chat.completions.create(model="policy", messages=messages, max_completion_tokens=12)
            messages += [{"role": "assistant", "content": first.choices[0].message.content}, {"role": "user", "content": SECOND_QUESTION}]
            await client.chat.completions.create(model="policy", messages=messages)
    return session.samples()
