"""The quickstart's problems, and the model and data files that ship in the package."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from vime.config.run_config import RunConfig
from vime.quickstart import DATA, MODEL, quickstart_defaults
from vime.quickstart.make import HELD_OUT_PROBLEMS, STEPS, TRAINING_PROBLEMS, demonstration_rows, warm_start_flags
from vime.quickstart.problems import Problem, boxed, demonstrations, held_out_problems, split_operands, training_problems

NUM_GPUS = 0


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def numbers_in(text: str) -> tuple[int, ...]:
    """The operands of a question in ascending order: the same for every operation, phrasing and order."""
    return tuple(sorted(int(number) for number in re.findall(r"\d+", text)))


def answer_of(text: str) -> int:
    a, b, c = (int(number) for number in re.findall(r"\d+", text))
    return a + b - c if re.search(r"-|take away|loses", text) else a + b + c


def test_the_files_are_the_ones_that_the_generator_makes() -> None:
    for name, problems in (("train", training_problems(TRAINING_PROBLEMS)), ("heldout", held_out_problems(HELD_OUT_PROBLEMS))):
        expected = [{"prompt": problem.text, "label": problem.label} for problem in problems]
        assert rows(DATA / f"{name}.jsonl") == expected
        assert len({row["prompt"] for row in expected}) == len(expected)


def test_labels_are_right_and_never_negative() -> None:
    for row in rows(DATA / "train.jsonl") + rows(DATA / "heldout.jsonl"):
        assert row["label"] == str(answer_of(row["prompt"]))
        assert int(row["label"]) >= 0


def test_held_out_problems_share_no_operands_with_training_or_warm_start() -> None:
    held_out = {numbers_in(row["prompt"]) for row in rows(DATA / "heldout.jsonl")}
    training = {numbers_in(row["prompt"]) for row in rows(DATA / "train.jsonl")}
    shown = {numbers_in(question) for question, _ in demonstration_rows()}
    assert len(held_out) > 25
    assert len(training) > 100
    assert held_out.isdisjoint(training | shown)


def test_every_way_to_ask_is_in_both_files() -> None:
    for name in ("train", "heldout"):
        starts = {re.sub(r"\d+|Ann|Ben|Mia|Tom|pens|cups|keys|nuts", "_", row["prompt"]) for row in rows(DATA / f"{name}.jsonl")}
        assert len(starts) == 6


def test_the_operand_split_covers_everything_once() -> None:
    training, held_out = split_operands()
    assert len(training) + len(held_out) == len(set(training) | set(held_out)) == 165


def test_another_seed_makes_other_problems_that_keep_the_rule() -> None:
    assert training_problems(50, seed=1) != training_problems(50, seed=2)
    operands = [
        {tuple(sorted(p.operands)) for p in problems} for problems in (training_problems(500, seed=3), held_out_problems(200, seed=3))
    ]
    assert operands[0].isdisjoint(operands[1])


def test_demonstrations_are_right_at_first_and_then_wrong_as_often_as_asked() -> None:
    shown = list(demonstrations(3000, wrong_from=1000, wrong_fraction=0.5))
    right = [answer == boxed(answer_of(question)) for question, answer in shown]
    assert all(right[:1000])
    assert sum(right[1000:]) == pytest.approx(1000, abs=100)


def test_a_problem_reads_as_its_docstring_says() -> None:
    problem = Problem("sum", (4, 9, 2), "Add 4, 9 and 2.", 15)
    assert problem.label == "15"
    assert boxed(problem.answer) == r"\boxed{15}"


def test_the_defaults_are_a_configuration_whose_files_exist() -> None:
    config = RunConfig(**quickstart_defaults())
    assert config.hf_checkpoint is not None
    assert config.prompt_data is not None
    assert [(dataset.name, dataset.temperature) for dataset in config.eval_datasets] == [("heldout", 1.0), ("heldout-greedy", 0.0)]
    for path in (config.hf_checkpoint, config.prompt_data, *(dataset.path for dataset in config.eval_datasets)):
        assert Path(path).exists()


def test_the_warm_start_trains_each_demonstration_once() -> None:
    flags = warm_start_flags(Path("out"))
    value = dict(zip(flags[1::2], flags[2::2], strict=True))
    assert int(value["--num-rollout"]) == STEPS
    assert int(value["--rollout-batch-size"]) * STEPS == sum(1 for _ in demonstration_rows())


def test_the_asset_is_small() -> None:
    size = sum(file.stat().st_size for folder in (MODEL, DATA) for file in folder.iterdir())
    assert size < 3_000_000


def test_the_tokenizer_takes_any_text_and_has_a_token_for_each_digit() -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL)
    for text in ("What is 12 + 5?", r"So \boxed{\frac{1}{2}}", "zwölf\n\n  + 🙂"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer.encode(boxed(17))) == 4
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|end|>", "<|end|>")
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True)
    assert prompt == "<|user|>Hi<|assistant|>"


def test_training_prompts_and_responses_fit_the_limits() -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL)
    response_limit = quickstart_defaults()["rollout_max_response_len"]
    for row in rows(DATA / "train.jsonl") + rows(DATA / "heldout.jsonl"):
        assert len(tokenizer.encode(row["prompt"])) <= 30
        assert len(tokenizer.encode(boxed(int(row["label"])))) + 1 <= response_limit


def test_the_model_knows_most_held_out_answers_and_is_unsure_of_them() -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL)
    model = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    assert 1e6 < sum(parameter.numel() for parameter in model.parameters()) < 3e6
    assert model.config.vocab_size == len(tokenizer)

    greedy, probability = [], []
    for row in rows(DATA / "heldout.jsonl")[:100]:
        prompt = tokenizer.encode(f"<|user|>{row['prompt']}<|assistant|>")
        answer = [*tokenizer.encode(boxed(int(row["label"]))), tokenizer.eos_token_id]
        with torch.no_grad():
            log_probs = model(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        greedy.append(log_probs.argmax(-1).tolist() == answer)
        probability.append(log_probs.gather(-1, torch.tensor(answer)[:, None]).sum().exp().item())
    assert sum(greedy) / 100 > 0.6
    assert 0.2 < sum(probability) / 100 < 0.55


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
