"""A Qwen3 decoder of 60 million random parameters, where the quickstart's model is too small to tell."""

from __future__ import annotations

from pathlib import Path


def write_random_model(folder: Path, *, is_tied: bool = True) -> str:
    """Write the model, in float32, and the quickstart's tokenizer into `folder`. Returns the folder. `is_tied` is its output head."""
    import torch
    from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

    from vime.quickstart import MODEL

    tokenizer = AutoTokenizer.from_pretrained(str(MODEL))
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=16384,
        hidden_size=640,
        intermediate_size=1920,
        num_hidden_layers=10,
        num_attention_heads=10,
        num_key_value_heads=5,
        head_dim=64,
        max_position_embeddings=512,
        tie_word_embeddings=is_tied,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)
