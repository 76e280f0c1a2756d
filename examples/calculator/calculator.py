"""A calculator that the policy may use while it answers: what it writes between two marks is computed and inserted.

The result is not the policy's own text: it has no log-probs and is not trained.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import vime.api
from vime.api import Engine, Sample, SamplingParams, Status, encode_prompt, hookimpl

OPERATIONS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
LONGEST = 100
"""Characters of an expression that are looked at: exact arithmetic on more could take long."""


class Calculator:
    """Generates in turns: up to the end of a call, then the result, then on."""

    class Settings(vime.api.Settings):
        open: str = "<calc>"
        """What begins a call."""
        close: str = "</calc>"
        """What ends it: generation stops there."""
        max_calls: int = 4
        """Calls of one answer; after them the marks are text like any other."""

    def __init__(self, settings: Calculator.Settings | None = None) -> None:
        self.settings = settings or Calculator.Settings()

    @hookimpl
    async def custom_generate(self, args: Any, sample: Sample, sampling_params: SamplingParams, engine: Engine) -> Sample:
        """One answer, with as many calls as it makes."""
        tokenizer = engine.tokenizer
        sample.tokens = sample.tokens or encode_prompt(tokenizer, sample.prompt)
        calls = 0
        limit = sampling_params.get("max_new_tokens", args.rollout_max_response_len)
        while (room := limit - sample.response_length) > 0:
            params = SamplingParams(**sampling_params)
            params["max_new_tokens"] = room
            if calls < self.settings.max_calls:
                params["stop"] = [*(sampling_params.get("stop") or []), self.settings.close]
            seed = sampling_params.get("seed")
            params["seed"] = None if seed is None else seed + calls  # the turns of one answer are drawn independently
            turn = await engine.generate(sample.tokens, params)
            text = tokenizer.decode(turn.token_ids)
            sample.append_response_tokens(
                tokens=turn.token_ids, log_probs=turn.log_probs, text=text, meta_info={"weight_version": turn.weight_version}
            )
            if turn.finish_reason == "abort":
                sample.status = Status.ABORTED
                return sample
            if turn.finish_reason == "length":
                break
            expression = self._call(sample.response) if calls < self.settings.max_calls else None
            if expression is None:
                sample.status = Status.COMPLETED
                return sample
            calls += 1
            result = f" = {calculate(expression)} "
            sample.append_response_tokens(tokens=tokenizer.encode(result, add_special_tokens=False), trainable=False, text=result)
        sample.status = Status.TRUNCATED
        return sample

    def _call(self, response: str) -> str | None:
        """The expression of the call that the response ends with, if it ends with one."""
        before, closed, after = response.rpartition(self.settings.close)
        _, opened, expression = before.rpartition(self.settings.open)
        return expression if closed and opened and not after.strip() else None


def calculate(expression: str) -> str:
    """The value of sums, differences, products and quotients, exactly; "error" for anything else. Nothing is executed."""
    try:
        return str(_value(ast.parse(expression[:LONGEST].strip(), mode="eval").body))
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return "error"


def _value(node: ast.expr) -> Fraction:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return Fraction(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATIONS:
        return OPERATIONS[type(node.op)](_value(node.left), _value(node.right))
    raise ValueError(f"{type(node).__name__} is not arithmetic")
