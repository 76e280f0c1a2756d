"""Evaluation datasets: what each is, and where each of its settings comes from."""

from __future__ import annotations

from typing import Any

from vime.config.fields import Count, CountOrZero, NonNegative, Positive, PositiveFraction, Section, TopK


class EvalDatasetConfig(Section):
    """One evaluation dataset. In `args.eval_datasets` every setting is resolved: entry, else eval.defaults, else flags."""

    name: str
    path: str
    n_samples_per_eval_prompt: Count | None = None
    temperature: NonNegative | None = None
    top_p: PositiveFraction | None = None
    top_k: TopK | None = None
    max_response_len: Count | None = None
    min_new_tokens: CountOrZero | None = None
    repetition_penalty: Positive | None = None
    stop: list[str] | None = None
    stop_token_ids: list[int] | None = None
    input_key: str | None = None
    label_key: str | None = None
    tool_key: str | None = None
    metadata_key: str | None = None
    apply_chat_template: bool | None = None
    apply_chat_template_kwargs: dict[str, Any] | None = None
    rm_type: str | None = None
    custom_rm_path: str | None = None
    custom_generate_function_path: str | None = None
    metadata_overrides: dict[str, Any] = {}
    min_eval_samples: CountOrZero | None = None
