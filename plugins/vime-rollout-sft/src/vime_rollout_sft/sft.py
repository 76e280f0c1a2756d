"""Rollouts for supervised fine-tuning: rows of the data become samples, and nothing is generated.

Enable with `--plugin sft --loss-type sft_loss`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vime.api import ConfigError, ContractError, DataError, RolloutFnTrainOutput, Sample, Status, hookimpl
from vime_rollout_sft.masks import Encoded, encode_conversation, encode_pair


@hookimpl
def generate_rollout(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> RolloutFnTrainOutput:
    """The next rollout_batch_size rows as groups of one sample with loss mask and reward 0.

    Samples are COMPLETED, or TRUNCATED where a limit cut them; one with nothing to train on within the limits is also
    removed from training. Metrics: `sft/truncated_rows`, `sft/dropped_rows` (the removed ones), `sft/trained_tokens`.
    """
    _check(args, data_source, evaluation)
    limits = Limits(args.vllm_max_model_len, args.rollout_max_response_len)
    groups: list[list[Sample]] = data_source.get_samples(args.rollout_batch_size)
    if len(groups) < args.rollout_batch_size:
        raise DataError(
            f"rollout {rollout_id}: the data source has {len(groups)} more rows, and a rollout needs {args.rollout_batch_size}",
            hint="lower --rollout-batch-size, or add data or epochs",
        )
    samples = [sample for group in groups for sample in group]
    for sample in samples:
        fill(args, data_source.tokenizer, sample, limits)
    metrics = {
        "sft/truncated_rows": float(sum(sample.status is Status.TRUNCATED for sample in samples)),
        "sft/dropped_rows": float(sum(sample.remove_sample for sample in samples)),
        "sft/trained_tokens": float(sum(sample.effective_response_length for sample in samples)),
    }
    return RolloutFnTrainOutput(groups, metrics)


@dataclass(frozen=True)
class Limits:
    """The longest sequence, and the longest part from its first trained token on, in tokens."""

    sequence: int | None
    response: int

    def cut(self, encoded: Encoded) -> Encoded:
        """The beginning of the row that fits."""
        end = encoded.prompt_length + self.response
        end = end if self.sequence is None else min(end, self.sequence)
        return Encoded(encoded.token_ids[:end], encoded.loss_mask[:end])


def fill(args: Any, tokenizer: Any, sample: Sample, limits: Limits) -> None:
    """Write tokens, response and loss mask of its row into the sample."""
    whole = encode(args, tokenizer, sample)
    encoded = limits.cut(whole)
    sample.remove_sample = 1 not in encoded.loss_mask
    start = len(encoded.token_ids) - 1 if sample.remove_sample else encoded.prompt_length
    sample.tokens = encoded.token_ids
    sample.loss_mask = encoded.loss_mask[start:]
    sample.response_length = len(sample.loss_mask)
    sample.response = tokenizer.decode(encoded.token_ids[start:], skip_special_tokens=False)
    sample.reward = 0.0
    sample.status = Status.COMPLETED if len(encoded.token_ids) == len(whole.token_ids) else Status.TRUNCATED


def encode(args: Any, tokenizer: Any, sample: Sample) -> Encoded:
    """Token ids and loss mask of a row: a text and its response, messages and their response, or a whole conversation."""
    prompt, label = sample.prompt, sample.label
    whole_conversation = not isinstance(prompt, str) and prompt[-1]["role"] == "assistant"
    if not whole_conversation and not isinstance(label, str):
        what = "is missing" if label is None else f"is a {type(label).__name__}"
        raise DataError(
            f"sample {sample.index}: its response {what}; expected text in the label, or messages that end with an assistant turn",
            hint="name the response: --label-key KEY; give conversations as messages, without --apply-chat-template",
        )
    if isinstance(prompt, str):
        return encode_pair(tokenizer, prompt, label)
    messages = prompt if whole_conversation else [*prompt, {"role": "assistant", "content": label}]
    options = {"tools": sample.metadata["tools"]} if sample.metadata.get("tools") else {}
    try:
        return encode_conversation(tokenizer, messages, last_only=not whole_conversation, **options, **args.apply_chat_template_kwargs)
    except DataError as error:
        raise DataError(f"sample {sample.index}: {error.message}", hint=error.hint) from None
    except Exception as error:  # a chat template is a program of the model's author, and raises what it likes
        raise DataError(
            f"sample {sample.index}: the chat template refuses this conversation: {type(error).__name__}: {error}",
            hint="check the roles and contents of its messages, and --apply-chat-template-kwargs",
        ) from error


def _check(args: Any, data_source: Any, evaluation: bool) -> None:
    if evaluation:
        raise ConfigError(
            "plugin 'sft' generates nothing to evaluate",
            hint="by loss: --loss-type sft_loss; by generation: --eval-function-path vime.rollout.vllm_rollout.generate_rollout",
        )
    if args.loss_type == "policy_loss":
        raise ConfigError(
            "plugin 'sft' gives every sample the reward 0, from which a policy loss learns nothing", hint="--loss-type sft_loss"
        )
    if args.n_samples_per_prompt != 1:
        raise ConfigError(
            f"plugin 'sft' makes one sample of a row, and n_samples_per_prompt is {args.n_samples_per_prompt}",
            hint="--n-samples-per-prompt 1",
        )
    if getattr(data_source, "tokenizer", None) is None:
        raise ContractError(
            f"plugin 'sft' needs the model's tokenizer, and {type(data_source).__name__} has none",
            hint="derive the data source from vime.rollout.data_source.RolloutDataSource, or give it an attribute `tokenizer`",
        )
