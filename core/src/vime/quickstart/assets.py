"""The quickstart's tokenizer, its model before any training, and its data files. Needs the extra cpu or gpu."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from vime.quickstart.problems import SEED, Problem, boxed, draw, split_operands

END, USER, ASSISTANT = "<|end|>", "<|user|>", "<|assistant|>"
VOCABULARY = 384
"""Most tokens there may be: 256 bytes, and the words of the problems."""
MAX_TOKENS = 128
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] }}{% if message['role'] == 'assistant' %}{{ '<|end|>' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def build_tokenizer() -> Any:
    """A byte-level BPE tokenizer, so that it takes any text, with a token for each word of the problems and each digit."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    pieces = pre_tokenizers.Split(Regex(r"\d|\\\p{L}+\{| ?\p{L}+ ?| ?[^\p{L}\d\s] ?|\s"), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pieces, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END, USER, ASSISTANT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    rng = random.Random(SEED)
    problems = [draw(rng, split_operands()[0]) for _ in range(4000)]
    tokenizer.train_from_iterator((text for problem in problems for text in (problem.text, boxed(problem.answer))), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=END,
        chat_template=CHAT_TEMPLATE,
        model_max_length=MAX_TOKENS,
        clean_up_tokenization_spaces=False,
    )


def build_model(tokenizer: Any) -> Any:
    """A Qwen3 decoder of 1.1 million parameters with random weights: few layers, since each costs a fixed time on a CPU."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(SEED)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=192,
        intermediate_size=640,
        num_hidden_layers=2,
        num_attention_heads=3,
        num_key_value_heads=3,
        head_dim=64,
        max_position_embeddings=MAX_TOKENS,
        tie_word_embeddings=True,
        initializer_range=0.02,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    return Qwen3ForCausalLM(config)


def write_problems(path: Path, problems: Iterable[Problem]) -> None:
    """A line {"prompt": ..., "label": ...} for each problem."""
    write_rows(path, ({"prompt": problem.text, "label": problem.label} for problem in problems))


def write_demonstrations(path: Path, demonstrations: Iterable[tuple[str, str]]) -> None:
    """A line {"messages": [question, answer]} for each demonstration."""
    write_rows(
        path,
        (
            {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}
            for question, answer in demonstrations
        ),
    )


def write_rows(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row) + "\n")
