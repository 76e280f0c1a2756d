"""Reading a command line: values, several values, optional values, switches, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vime.cli.flags import parse_flags
from vime.errors import ConfigError

NUM_GPUS = 0


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("--lr 1e-6 --rollout-batch-size=4", {"lr": "1e-6", "rollout_batch_size": "4"}),
        ("--rollout-top-k -1", {"rollout_top_k": "-1"}),
        ("--rollout_batch_size 4", {"rollout_batch_size": "4"}),
        ("--model m --seed 3", {"hf_checkpoint": "m", "rollout_seed": "3"}),
        ("--group-rm --no-tensorboard", {"group_rm": True, "tensorboard": False}),
        ("--group-rm=false", {"group_rm": "false"}),
        ("--disable-rewards-normalization", {"rewards_normalization": False}),
        ("--plugin math --plugin nonzero-std", {"plugin": ["math", "nonzero-std"]}),
        ("--plugin math nonzero-std --lr 1", {"plugin": ["math", "nonzero-std"], "lr": "1"}),
        ("--no-plugin math", {"no_plugin": ["math"]}),
        ("--eval-prompt-data a a.jsonl b b.jsonl", {"eval_prompt_data": ["a", "a.jsonl", "b", "b.jsonl"]}),
        ("--eval-prompt-data a a.jsonl --eval-prompt-data b b.jsonl", {"eval_prompt_data": ["a", "a.jsonl", "b", "b.jsonl"]}),
        ("--rollout-stop=X --rollout-stop=Y", {"rollout_stop": ["X", "Y"]}),
        ("--rollout-stop-token-ids 1 2", {"rollout_stop_token_ids": ["1", "2"]}),
        ("--serve-engine --lr 1", {"serve_engine": "0", "lr": "1"}),
        ("--serve-engine 8000", {"serve_engine": "8000"}),
        ("--serve-engine", {"serve_engine": "0"}),
        ("--set math.timeout=5 --set a.b=c=d", {"set": ["math.timeout=5", "a.b=c=d"]}),
        ("--reward-key=", {"reward_key": ""}),
    ],
)
def test_values(line: str, values: dict[str, Any]) -> None:
    assert parse_flags(line.split()).values == values


def test_a_value_that_begins_with_dashes() -> None:
    assert parse_flags(["--rollout-stop=--end--"]).values == {"rollout_stop": ["--end--"]}


def test_the_file_and_the_switches_of_a_command() -> None:
    parsed = parse_flags(["--config", "run.yaml", "--json"], switches=("json",))
    assert (parsed.config_file, parsed.switches, parsed.values) == (Path("run.yaml"), {"json"}, {})


@pytest.mark.parametrize(
    ("line", "message", "hint"),
    [
        ("--rollout-batchsize 4", "unknown flag --rollout-batchsize", "did you mean --rollout-batch-size?"),
        ("--xyzzy", "unknown flag --xyzzy", "vime train --help lists them all"),
        ("--json", "unknown flag --json", ""),
        ("--no-lr", "unknown flag --no-lr", ""),
        ("--tensor-model-parallel-size 4", "unknown flag --tensor-model-parallel-size: it belongs to Megatron or SGLang", "leave it out"),
        ("--lr", "--lr needs a value: a number of at least 0", "a value that begins with --"),
        ("--lr --group-rm", "--lr needs a value: a number of at least 0", ""),
        ("--eval-prompt-data --lr 1", "--eval-prompt-data needs a value: text", ""),
        ("--config", "--config needs a value: a file", ""),
        ("--config a.yaml --config b.yaml", "--config is given twice", "keep one"),
        ("--plugin math,nonzero-std", "--plugin math,nonzero-std: one word", "repeat the flag: --plugin math --plugin nonzero-std"),
        ("--no-tensorboard=true", "--no-tensorboard takes no value", "write --no-tensorboard, or --tensorboard=true or false"),
        ("--disable-rewards-normalization=1", "--disable-rewards-normalization takes no value", ""),
        ("--lr 1 --lr 2", "--lr is given twice", "keep one"),
        ("--group-rm true", "unexpected word 'true'", "values come after their flag"),
        ("train.yaml", "unexpected word 'train.yaml'", ""),
        ("-x", "unexpected word '-x'", ""),
    ],
)
def test_refused(line: str, message: str, hint: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_flags(line.split())
    assert refused.value.message.startswith(message)
    assert (refused.value.hint or "").startswith(hint)


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
