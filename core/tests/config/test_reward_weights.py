"""Sums of rewards in the configuration: `--rm-type math+format`, `--reward-weights`, and the reward keys that follow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from vime.config.load import dump_config, load_config
from vime.config.reward_sum import parts_of
from vime.config.run_config import RunConfig
from vime.errors import ConfigError

NUM_GPUS = 0


def of_dataset(**settings: Any) -> list[dict[str, Any]]:
    return [{"name": "d", "path": "d.jsonl", **settings}]


def refusal(**given: Any) -> str:
    with pytest.raises(ConfigError) as refused:
        RunConfig(**given)
    return str(refused.value)


def test_parts_have_their_names_weights_and_keys() -> None:
    parts = parts_of("boxed_math + dapo:acc+remote_rm", {"dapo": 0.5, "remote": -1.0}, "--rm-type")
    assert [(part.name, part.plugin, part.boxed, part.key, part.weight) for part in parts] == [
        ("boxed_math", "math", True, None, 1.0),
        ("dapo", "dapo", False, "acc", 0.5),
        ("remote_rm", "remote-rm", False, None, -1.0),
    ]


@pytest.mark.parametrize(
    ("given", "keys"),
    [
        ({"rm_type": "math+format"}, ("total", "total")),
        ({"rm_type": "math+format", "reward_key": "math"}, ("math", "math")),
        ({"rm_type": "math+format", "eval_reward_key": "math"}, ("total", "math")),
        ({"rm_type": "math", "eval_datasets": of_dataset(rm_type="math+f1")}, (None, "total")),
        ({"rm_type": "math", "eval_datasets": of_dataset(metadata_overrides={"rm_type": "math+f1"})}, (None, "total")),
        ({"rm_type": "math+f1", "custom_rm_path": "my.rm"}, (None, None)),
        ({"rm_type": "math", "eval_datasets": of_dataset(rm_type="math+f1", custom_rm_path="my.rm")}, (None, None)),
        ({"rm_type": "math"}, (None, None)),
    ],
)
def test_total_is_the_key_where_no_other_is_set(given: dict[str, Any], keys: tuple[str | None, str | None]) -> None:
    config = RunConfig(**given)
    assert (config.reward_key, config.eval_reward_key) == keys


@pytest.mark.parametrize("given", ["math=1,format=0.2", " math = 1 , format=.2 ", {"math": 1, "format": 0.2}])
def test_weights_are_text_or_a_mapping_and_come_back_from_the_written_file(given: Any, tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump({"rm_type": "math+format", "reward_weights": given}))
    resolved = load_config({}, file, {}, check_files=False)
    assert resolved.config.reward_weights == {"math": 1.0, "format": 0.2}
    assert resolved.origins["reward_key"] == "derived"
    file.write_text(dump_config(resolved.config))
    assert load_config({}, file, {}, check_files=False).config == resolved.config
    if isinstance(given, str):
        flags = {"rm_type": "math+format", "reward_weights": given}
        assert load_config(flags, None, {}, check_files=False).config == resolved.config


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rm_type": "math+"}, "--rm-type 'math+': there is nothing on one side of a '+'"),
        ({"rm_type": "math++f1"}, "there is nothing on one side of a '+'"),
        ({"rm_type": "math+Math"}, "'math' and 'Math' are one reward"),
        ({"rm_type": "remote_rm+f1+remote"}, "'remote_rm' and 'remote' are one reward"),
        ({"rm_type": "total+f1"}, "no part can be named 'total'"),
        ({"rm_type": "dapo:+f1"}, "'dapo:' is no part of a sum"),
        ({"rm_type": "boxed_+f1"}, "'boxed_' is no part of a sum"),
        ({"eval_datasets": of_dataset(rm_type="f1+f1")}, "evaluation dataset 'd': rm_type 'f1+f1': 'f1' and 'f1' are one reward"),
        (
            {"rm_type": "dapo+f1", "reward_key": "score"},
            "--reward-key is 'score', but the rewards of --rm-type have the keys dapo, f1, total",
        ),
        (
            {"rm_type": "dapo+f1", "eval_reward_key": "acc", "eval_datasets": of_dataset()},
            "--eval-reward-key is 'acc', but the rewards of --rm-type",
        ),
        (
            {"rm_type": "dapo", "reward_key": "score", "eval_datasets": of_dataset(rm_type="math+f1")},
            "evaluation dataset 'd': rm_type have the keys math, f1, total\n  hint: --eval-reward-key total",
        ),
    ],
)
def test_sums_that_cannot_be_are_refused(given: dict[str, Any], message: str) -> None:
    assert message in refusal(**given)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ("format", "expected NAME=NUMBER,NAME=NUMBER, got 'format'"),
        ("", "expected NAME=NUMBER"),
        ("math=1,", "expected NAME=NUMBER"),
        ("math=1,math=2", "'math' has two weights"),
        ("math=one", "expected a finite number for 'math', got 'one'"),
        ("math=nan", "expected a finite number for 'math', got nan"),
        ("math=1e999", "expected a finite number for 'math', got inf"),
        ({}, "or a mapping of names to numbers, got {}"),
        (["math=1"], r"or a mapping of names to numbers, got ['math=1']"),
        ({"math": "1"}, "expected a finite number for 'math', got '1'"),
        ({"math": True}, "expected a finite number for 'math', got True"),
        ({"math": None}, "expected a finite number for 'math', got None"),
        ({"math": 10**400}, "expected a finite number for 'math'"),
        ({1: 2}, "expected the name of a reward, got 1"),
        ("fromat=1", "'fromat' is no part of math+format\n  hint: did you mean 'format'?"),
        ("math:acc=1", "'math:acc' is no part of math+format"),
        ("boxed_math=1", "'boxed_math' is no part of math+format"),
        ("math=1,MATH=2", "'math' and 'MATH' are one reward"),
    ],
)
def test_weights_that_say_nothing_are_refused(weights: Any, message: str) -> None:
    assert message in refusal(rm_type="math+format", reward_weights=weights)


def test_weights_without_a_sum_are_refused() -> None:
    assert "--rm-type math is one reward\n  hint: name the parts of the sum, as in --rm-type math+f1" in refusal(
        rm_type="math", reward_weights="f1=1"
    )
    assert "no --rm-type names several rewards" in refusal(reward_weights="f1=1")
    assert "no effect with --custom-rm-path" in refusal(rm_type="math+f1", reward_weights="f1=1", custom_rm_path="my.rm")
    assert RunConfig(rm_type="math", reward_weights="f1=2", eval_datasets=of_dataset(rm_type="math+f1")).reward_weights == {"f1": 2.0}


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
