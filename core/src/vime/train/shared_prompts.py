"""Samples of one prompt go through the model as one sequence, in which the prompt is computed once.

The responses lie behind it one after another, each with the positions it has in its own row, and a mask lets a token see
the prompt and its own response. Log-probs and gradients are those of separate rows; what is saved is the prompt, once for
each further sample. The idea is that of Prefix Grouper (Liu et al. 2025, arXiv:2506.05433).
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from vime.train.microbatch import Row

LONGEST = 8192
"""Tokens that a sequence of several rows may have: its mask takes the square of them, in the model's number format."""
WORTHWHILE = 0.9
"""Rows share a prompt where that costs less than this part of what they cost alone: the mask has a price that is not counted."""


def attention_pair_cost(model: Any) -> float | None:
    """What attention costs for a pair of tokens, where everything else costs 1 a token. None: the model cannot share prompts.

    It can where PyTorch's attention takes a mask, every layer attends to all that comes before, and positions are given by
    number. Attention counts twice its operations, since it runs at about half the speed of a matrix product.
    """
    config = model.config.get_text_config()
    attends_to_all = set(getattr(config, "layer_types", None) or ()) <= {"full_attention"} and not (
        any(getattr(config, name, None) for name in ("sliding_window", "keep_window_size", "alibi"))
        or getattr(model, "_is_stateful", False)
    )
    if config._attn_implementation != "sdpa" or not attends_to_all:
        return None
    backbone = getattr(model, model.base_model_prefix)
    if not {"position_ids", "attention_mask"} <= set(inspect.signature(backbone.forward).parameters):
        return None
    in_layers = sum(weight.numel() for weight in backbone.parameters() if weight.ndim == 2) - backbone.get_input_embeddings().weight.numel()
    heads = config.num_attention_heads
    width = heads * (getattr(config, "head_dim", None) or config.hidden_size // heads)
    return 4.0 * config.num_hidden_layers * width / in_layers


def prompt_of(row: Row) -> tuple[int, ...]:
    """The tokens before the first trained one."""
    return tuple(row.tokens[: row.positions[0]])


def sequence_length(rows: Sequence[Row]) -> int:
    """Tokens of the sequence that these rows make, which share their prompt or are one."""
    prompt = rows[0].positions[0]
    return prompt + sum(row.input_length - prompt for row in rows)


def share_prompts(rows: Sequence[Row], pair_cost: float, max_tokens: int, max_rows: int) -> list[list[int]]:
    """Positions in `rows` by sequence: as many rows of a prompt together as is cheapest, each row once.

    A sequence of several rows has up to `max_tokens` tokens, and never more than LONGEST, and up to `max_rows` rows.
    """
    max_tokens = min(max_tokens, LONGEST)
    members: dict[tuple[int, ...], list[int]] = {}
    for position, row in enumerate(rows):
        members.setdefault(prompt_of(row), []).append(position)
    sequences: list[list[int]] = []
    for prompt, alike in members.items():
        alike.sort(key=lambda position: -rows[position].input_length)
        sequences += _cheapest(alike, [rows[position].input_length for position in alike], len(prompt), pair_cost, max_tokens, max_rows)
    return sequences


def _cheapest(alike: list[int], lengths: list[int], prompt: int, pair_cost: float, max_tokens: int, max_rows: int) -> list[list[int]]:
    """One prompt's rows, longest first, in parts of the size that costs least: all, as many as may be, or a power of 2."""

    def cost(size: int) -> float:
        total = 0.0
        for start in range(0, len(lengths), size):
            part = lengths[start : start + size]
            tokens = sum(part) - prompt * (len(part) - 1)
            if len(part) > 1 and tokens > max_tokens:
                return float("inf")
            total += tokens + pair_cost * tokens**2 / (2 if len(part) == 1 else 1)  # without a mask the upper half is left out
        return total

    most = min(len(alike), max_rows)
    best = min({*(2**power for power in range(most.bit_length())), most}, key=cost)
    if cost(best) >= WORTHWHILE * cost(1):
        best = 1
    return [alike[start : start + best] for start in range(0, len(alike), best)]


def shared_mask(segments_B_T: Tensor) -> Tensor:
    """Who sees whom, (B, 1, T, T): what lies before, of the prompt (segment 0) or of the same response."""
    tokens = segments_B_T.shape[1]
    before_T_T = torch.ones((tokens, tokens), dtype=torch.bool, device=segments_B_T.device).tril()
    of_prompt_B_1_T = (segments_B_T == 0)[:, None, :]
    return (before_T_T & (of_prompt_B_1_T | (segments_B_T[:, :, None] == segments_B_T[:, None, :])))[:, None]
