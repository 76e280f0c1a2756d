"""What a trainer reports under any setting is on the page of metrics."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from vime.train.batch import build_train_batch

NUM_GPUS = 0

PAGE_TEST = Path(__file__).resolve().parents[3] / "tests" / "test_metrics_page.py"
EVERYTHING = {"use_kl_loss": True, "kl_loss_coef": 0.1, "entropy_coef": 0.01}

SETTINGS = {
    "grpo": {},
    "several steps": {"num_steps_per_rollout": 3, **EVERYTHING},
    "truncated correction": {"use_tis": True, **EVERYTHING},
    "masked correction": {"use_tis": True, "tis_mode": "mask"},
    "kl in the reward": {"kl_coef": 0.1},
    "ppo": {"advantage_estimator": "ppo", "critic_lr": 1e-3, "value_clip": 0.2, **EVERYTHING},
    "only the critic": {"advantage_estimator": "ppo", "critic_lr": 1e-3, "num_critic_only_steps": 2},
    "supervised": {"loss_type": "sft_loss", "n_samples_per_prompt": 4},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_every_metric_of_a_trainer_is_documented(name, make_trainer, make_config, make_groups):
    spec = importlib.util.spec_from_file_location("test_metrics_page", PAGE_TEST)
    assert spec is not None and spec.loader is not None
    page = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(page)
    config = make_config(**SETTINGS[name])
    metrics = make_trainer(config).train(build_train_batch(config, None, make_groups()))
    assert len(metrics) > 5
    assert page.undocumented({f"train/{metric}" for metric in metrics}) == set()


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
