"""A causal language model that answers with the log-probs of chosen tokens instead of logits.

Legend: B rows, T tokens, K chosen tokens, C tokens of a chunk, V vocabulary, H hidden size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vime.train.output_head import answer_in_float32, log_probs_and_entropy
from vime.train.shared_prompts import attention_pair_cost

LOGITS_AT_ONCE = 2**24
"""Float32 logits that may exist at a time whatever the chunk size (64 MiB): below that, remaking them costs and saves nothing."""


class PolicyModel(nn.Module):
    """Wraps a Hugging Face causal LM. `model` is the wrapped one, whose weights and names are the public ones."""

    def __init__(self, model: nn.Module, temperature: float, chunk_size: int = 1024) -> None:
        super().__init__()
        self.model = model
        self.temperature = temperature
        config: Any = model.config
        self.chunk_size = max(chunk_size, LOGITS_AT_ONCE // config.vocab_size)
        self.softcap: float | None = getattr(config, "final_logit_softcapping", None)
        if next(model.parameters()).dtype is not torch.float32:
            answer_in_float32(model.get_output_embeddings())  # type: ignore[operator]
        self.pair_cost = attention_pair_cost(model)
        """None where rows of one prompt cannot be one sequence."""
        self.scale: float = getattr(config, "logit_scale", None) or 1.0 / (getattr(config, "logits_scaling", None) or 1.0)

    def forward(
        self,
        input_ids_B_T: Tensor,
        select_K: Tensor,
        targets_K: Tensor,
        *,
        position_ids_B_T: Tensor | None = None,
        attention_mask_B_1_T_T: Tensor | None = None,
        temperature: float | None = None,
        entropy_grad: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Log-prob of each of K targets, and the entropy of the distribution it was drawn from, both float32.

        `select_K` indexes the flattened (B, T): where target k is predicted from. Rows are padded on the right only,
        so that causal attention needs no mask; rows laid end to end come with `position_ids_B_T`, each counting from 0,
        and attention stays within them; rows that share a prompt come with `attention_mask_B_1_T_T` too. Logits are
        divided by the temperature. They are made and consumed in chunks, and remade in the backward pass, so that the
        (K, V) float32 tensor never exists where it would be large.
        """
        backbone: Any = getattr(self.model, self.model.base_model_prefix)  # type: ignore[arg-type]
        hidden_K_H = hidden_states(backbone, input_ids_B_T, select_K, position_ids_B_T, attention_mask_B_1_T_T)
        temperature = self.temperature if temperature is None else temperature
        parts = []
        for start in range(0, max(1, len(targets_K)), self.chunk_size):
            end = start + self.chunk_size
            inputs = (hidden_K_H[start:end], targets_K[start:end], temperature, entropy_grad)
            if torch.is_grad_enabled() and len(targets_K) > self.chunk_size:
                parts.append(checkpoint(self._chunk, *inputs, use_reentrant=False, preserve_rng_state=False))
            else:
                parts.append(self._chunk(*inputs))
        return torch.cat([log_probs for log_probs, _ in parts]), torch.cat([entropy for _, entropy in parts])

    def _chunk(self, hidden_C_H: Tensor, targets_C: Tensor, temperature: float, entropy_grad: bool) -> tuple[Tensor, Tensor]:
        logits_C_V = self.model.get_output_embeddings()(hidden_C_H).float()  # type: ignore[operator]
        if self.scale != 1.0:
            logits_C_V = logits_C_V * self.scale
        if self.softcap:
            logits_C_V = torch.tanh(logits_C_V / self.softcap) * self.softcap
        if temperature != 1.0:
            logits_C_V = logits_C_V / temperature
        return log_probs_and_entropy(logits_C_V, targets_C, entropy_grad=entropy_grad)


def hidden_states(
    backbone: Any, input_ids_B_T: Tensor, select_K: Tensor, position_ids_B_T: Tensor | None, attention_mask_B_1_T_T: Tensor | None
) -> Tensor:
    """What the backbone makes of the tokens that `select_K` indexes in the flattened (B, T), as (K, H). See `MicroBatch.layout`."""
    if attention_mask_B_1_T_T is not None:  # of booleans, attention makes such numbers again in each layer, and keeps them there
        bias_B_1_T_T = torch.zeros(attention_mask_B_1_T_T.shape, dtype=backbone.dtype, device=input_ids_B_T.device)
        attention_mask_B_1_T_T = bias_B_1_T_T.masked_fill_(~attention_mask_B_1_T_T, -torch.inf)
    layout = {"position_ids": position_ids_B_T, "attention_mask": attention_mask_B_1_T_T}
    given = {name: part for name, part in layout.items() if part is not None}
    hidden_B_T_H = backbone(input_ids=input_ids_B_T, use_cache=False, **given).last_hidden_state
    return hidden_B_T_H.reshape(-1, hidden_B_T_H.shape[-1])[select_K]
