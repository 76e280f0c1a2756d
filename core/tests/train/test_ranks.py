"""Several ranks take the step that one rank takes."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

NUM_GPUS = 0

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

WORKER = """
import importlib.util, json, sys, warnings
from pathlib import Path

warnings.simplefilter("ignore")
import deepspeed.ops
import torch

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # half a minute of compiling, for nothing here
torch.set_num_threads(1)
from vime.config.run_config import RunConfig
from vime.sample import Sample
from vime.train.batch import build_train_batch
from vime.train.deepspeed_trainer import DeepSpeedTrainer
from vime.train.parameters import gather_named_weights

job = json.loads(Path(sys.argv[1]).read_text())
config = RunConfig(**job["config"])
groups = [[Sample.from_dict(sample) for sample in group] for group in job["groups"]]
trainer = DeepSpeedTrainer(config, job["model"])
batch = build_train_batch(config, None, groups)
metrics = [trainer.train(batch)]
batch.rewards[0] = float("nan")
metrics.append(trainer.train(batch))
weights = {name: tensor.double().sum().item() for name, tensor in trainer.named_weights()}
if trainer.critic is not None:
    partitioned = trainer.engine.zero_optimization_partition_weights()
    values = gather_named_weights(trainer.critic.model, is_partitioned=partitioned)
    weights |= {"critic." + name: tensor.double().sum().item() for name, tensor in values}
score = trainer.score([[1, 2, 3, 4]])
trainer.save(sys.argv[2] + "/checkpoint")
again = DeepSpeedTrainer(config, job["model"])
again.load(sys.argv[2] + "/checkpoint")
assert again.score([[1, 2, 3, 4]]) == score
Path(sys.argv[2], f"rank{trainer.rank}.json").write_text(json.dumps({"metrics": metrics, "weights": weights, "score": score}))
"""


def run_ranks(ranks: int, job: dict, folder: Path) -> list[dict]:
    folder.mkdir()
    (folder / "job.json").write_text(json.dumps(job))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = os.environ | {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", WORKER, str(folder / "job.json"), str(folder)]
    workers = [subprocess.Popen(command, env=environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(ranks)]
    assert [worker.wait(timeout=180) for worker in workers] == [0] * ranks
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(ranks)]


@pytest.mark.parametrize(("stage", "estimator"), [(0, "grpo"), (2, "ppo"), (3, "ppo")])
def test_case_a11_two_ranks_train_five_samples_as_one_does(model_path, make_groups, tmp_path, stage, estimator):
    groups = make_groups(1, 5)
    groups[0][3].rollout_log_probs = [-2.5] * groups[0][3].response_length
    config = {
        "rollout_batch_size": 1,
        "n_samples_per_prompt": 5,
        "micro_batch_size": 1,
        "lr": 1e-2,
        "train_dtype": "float32",
        "entropy_coef": 0.01,
        "zero_stage": stage,
        "advantage_estimator": estimator,
        "use_tis": True,
        "tis_mode": "mask",
        "tis_level": "geometric",
        "use_kl_loss": True,
        "kl_loss_coef": 0.1,
        "kl_loss_type": "k3",
        "use_unbiased_kl": True,
        "ref_update_interval": 1,
    }
    job = {"config": config, "groups": [[sample.to_dict() for sample in group] for group in groups], "model": model_path}
    (alone,) = run_ranks(1, job, tmp_path / "one")
    first, second = run_ranks(2, job, tmp_path / "two")
    assert first == second
    taken, skipped = first["metrics"]
    assert skipped["skipped_steps"] == 1.0 and skipped.get("critic_skipped_steps", 1.0) == 1.0
    expected = alone["metrics"][0]
    for name in expected.keys() - {"padding_fraction"}:
        assert taken[name] == pytest.approx(expected[name], rel=1e-4, abs=1e-6), name
    assert first["weights"] == pytest.approx(alone["weights"], abs=1e-4)
    assert first["score"][0] == pytest.approx(alone["score"][0], abs=1e-4)


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
