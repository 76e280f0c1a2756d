"""What rewards are shown: the author's cases, plausible samples where there are none, and hostile text."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from vime.sample import Sample, Status
from vime.testing.checks.base import RewardCase
from vime.testing.factories import finished_sample

NEED_CASE = "give a known case: RewardCase(prompt, response, label, reward), or --cases FILE"
WRONG_RESPONSES = ("I do not know.", "", "no " * 4000)
"""Responses that no label calls right."""

MOST_TOKENS = 1000
"""Tokens that a sample gets, however long its text is: one for each character would take longer than the reward."""


@dataclass(frozen=True)
class Input:
    """One sample for a reward, to be made as often as it is needed."""

    response: str
    label: Any
    prompt: str | list[dict[str, Any]] = "What is 2 + 2?"
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    status: Status = Status.COMPLETED
    expected: Any = None
    """What the author says it must get; None where nobody said."""

    def sample(self, index: int = 0, *, group_index: int = 0) -> Sample:
        """A finished sample that shares nothing with any other."""
        sample = finished_sample(
            index,
            self.response[:MOST_TOKENS],
            status=self.status,
            prompt=copy.deepcopy(self.prompt),
            label=copy.deepcopy(self.label),
            metadata=copy.deepcopy(self.metadata),
            group_index=group_index,
        )
        sample.response = self.response
        return sample

    def but(self, **changes: Any) -> Input:
        """The same with other values; what was expected of it no longer counts."""
        return replace(self, expected=None, **changes)


def from_cases(cases: Sequence[RewardCase]) -> list[Input]:
    """The author's cases."""
    return [Input(case.response, case.label, case.prompt, dict(case.metadata), expected=case.reward) for case in cases]


def plausible() -> Iterator[Input]:
    """Right answers in the forms that rewards of this field read, each with a prompt of its own."""
    chat = [{"role": "user", "content": "What is 2 + 2?"}]
    everything = r"<think>2 + 2 = 4</think><answer>\boxed{4}</answer>" + "\n#### 4"
    found = [
        Input("4", "4"),
        Input(r"The answer is \boxed{4}.", "4"),
        Input("2 + 2 = 4\n#### 4", "4"),
        Input("<think>2 + 2 = 4</think><answer>4</answer>", "4"),
        Input(everything, "4"),
        Input("Answer: 4", "4"),
        Input("4", "4", prompt=chat),
        Input(everything, 4),
        Input("4", 4),
        Input("The answer is (B).", "B", prompt="Which letter comes after A?"),
        Input("B", "B", prompt="Which letter comes after A?"),
        Input('{"answer": 4}', "4"),
        Input('{"answer": 4}', {"answer": 4}),
        Input(everything, {"answer": "4"}),
        Input("4", {"ground_truth": "4"}),
        Input("4", ["4"]),
        Input("4", None, metadata={"answer": "4", "ground_truth": "4", "label": "4"}),
        Input("```python\ndef add(a, b):\n    return a + b\n```", "assert add(2, 2) == 4", prompt="Write add(a, b)."),
        Input("Paris is the capital of France.", "Paris", prompt="What is the capital of France?"),
        Input("word " * 300, None, prompt="Write a long text."),
    ]
    for number, one in enumerate(found):
        yield one if not isinstance(one.prompt, str) else replace(one, prompt=f"{number}. {one.prompt}")


def hostile_texts() -> dict[str, str]:
    """Responses that break careless code, by what they are."""
    deep = 5_000
    return {
        "an empty response": "",
        "white space": " \n\t\r\n ",
        "a NUL character": "4\x004",
        r"an unclosed \boxed{": r"so the answer is \boxed{4",
        r"an unclosed \boxed{ with a long text": r"so the answer is \boxed{" + "x" * 60,
        "an unclosed <answer> with a long text": "<answer>" + "so we get " * 12,
        "digits and spaces that lead nowhere": "1 " * 30 + "!",
        r"an empty \boxed{}": r"so the answer is \boxed{}",
        "an unclosed <answer>": "<think>hm</think><answer>4",
        "10,000 digits": "9" * 10_000,
        "10,000 digits in a box": r"\boxed{" + "9" * 10_000 + "}",
        "a number beyond all floats": "1e999",
        "nan": "nan",
        "nan in a box": r"\boxed{nan}",
        "a division by zero": r"\boxed{1/0}",
        "10**10**10": "10**10**10",
        "10**10**10 in a box": r"\boxed{10^{10^{10}}}",
        "deeply nested brackets": "[" * deep + "]" * deep,
        "deeply nested braces": r"\boxed{" * deep + "4" + "}" * deep,
        "right-to-left text": "الجواب هو ٤ \u202e4",
        "Chinese, Japanese and Korean text": "答案是四。 答えは四です。 답은 4입니다.",
        "emoji and combining marks": "4\ufe0f\u20e3 \U0001f469\u200d\U0001f52c e\u0301",
        "broken JSON": '{"answer": [1, 2',
        "1 MB of text": "so we get 4, and " * 62_000,
        "1 MB without a space": "4" + "a" * 1_000_000,
    }
