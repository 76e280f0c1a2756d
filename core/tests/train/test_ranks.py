"""Several ranks take the step that one rank takes, and share the passes that only score."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

NUM_GPUS = 0

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

# Steps as large as the gradient: with an epsilon this large, Adam's first one is -gradient where lr is the same.
EPSILON = 1e4
WORKER = """
import json, sys, warnings
from pathlib import Path

warnings.simplefilter("ignore")
import deepspeed.ops
import numpy
import torch

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # half a minute of compiling, for nothing here
torch.set_num_threads(1)
from vime.config.run_config import RunConfig
from vime.sample import Sample
from vime.train.batch import build_train_batch
from vime.train.deepspeed_trainer import DeepSpeedTrainer
from vime.train.parameters import gather_named_weights


def all_weights(trainer):
    weights = {name: tensor.double().clone() for name, tensor in trainer.named_weights()}
    if trainer.critic is not None:
        partitioned = trainer.engine.zero_optimization_partition_weights()
        values = gather_named_weights(trainer.critic.model, is_partitioned=partitioned)
        weights |= {"critic." + name: tensor.double().clone() for name, tensor in values}
    return weights


def count_passes(trainer, passes):
    models = {"policy": trainer.engine.module}
    models |= {"critic": trainer.critic.engine.module} if trainer.critic is not None else {}
    models |= {"reference": trainer.reference.model} if hasattr(trainer.reference, "model") else {}
    for name, model in models.items():
        passes[name] = 0

        def count(module, inputs, name=name):
            passes[name] += not torch.is_grad_enabled()

        model.register_forward_pre_hook(count)


def run(name, job):
    config = RunConfig(**job["config"])
    groups = [[Sample.from_dict(sample) for sample in group] for group in job["groups"]]
    torch.manual_seed(0)  # as seed_everything does in each rank: adapters start from random numbers
    trainer = DeepSpeedTrainer(config, job["model"])
    passes, result = {}, {}
    count_passes(trainer, passes)
    result["log_probs"] = trainer.sample_log_probs([sample for group in groups for sample in group])
    before = all_weights(trainer)
    batch = build_train_batch(config, None, groups)
    result["metrics"] = trainer.train(batch)
    result["passes"] = dict(passes)
    result["seen"] = {row.index: row.seen_log_probs_M.tolist() for row in batch.rows if row.seen_log_probs_M is not None}
    after = all_weights(trainer)
    result["sum"] = sum(tensor.sum().item() for tensor in after.values())
    change = {key: (after[key] - before[key]).numpy() for key in after}
    result["score"] = trainer.score([[1, 2, 3, 4], [5], [6, 7]])
    if "skipped" in job:
        batch.rewards[1] = float("nan")
        result["skipped"] = trainer.train(batch)
        trainer.save(f"{folder}/{name}")
        again = DeepSpeedTrainer(config, job["model"])
        again.load(f"{folder}/{name}")
        result["before"], result["after"] = trainer.score([[1, 2, 3, 4]]), again.score([[1, 2, 3, 4]])
        if "foreign" in job:
            again.load(job["foreign"])
            result["foreign"] = again.score([[1, 2, 3, 4]])
    if trainer.rank == 0:
        numpy.savez(f"{folder}/{name}.npz", **change)
    return trainer.rank, result


folder = sys.argv[2]
results = {}
for name, job in json.loads(Path(sys.argv[1]).read_text()).items():
    rank, results[name] = run(name, job)
Path(folder, f"rank{rank}.json").write_text(json.dumps(results))
"""

PLAIN = {
    "rollout_batch_size": 1,
    "n_samples_per_prompt": 8,
    "micro_batch_size": 1,
    "max_tokens_per_gpu": 1,  # one row in each pass without gradient
    "lr": EPSILON,
    "adam_eps": EPSILON,
    "weight_decay": 0.0,
    "train_dtype": "float32",
    "entropy_coef": 0.01,
    "use_tis": True,
    "tis_mode": "mask",
    "tis_level": "geometric",
    "use_kl_loss": True,
    "kl_loss_coef": 0.1,
    "kl_loss_type": "k3",
}
IN_REWARD = {"kl_coef": 0.1, "use_kl_loss": False, "kl_loss_coef": 0.0}
CASES = {
    "zero_0": {"zero_stage": 0, "use_unbiased_kl": True, "ref_update_interval": 1},
    "zero_2": {"zero_stage": 2, "loss_aggregation": "token", "clip_grad": 0.01},
    "zero_3": {"zero_stage": 3, "num_steps_per_rollout": 2, "micro_batch_size": None, "max_tokens_per_gpu": 24},
    "ppo_2": {"zero_stage": 2, "advantage_estimator": "ppo", "critic_lr": EPSILON},
    "ppo_3": {"zero_stage": 3, "advantage_estimator": "ppo", "critic_lr": EPSILON, **IN_REWARD},
    "lora_0": {"zero_stage": 0, "lora_rank": 2},
    "lora_3": {"zero_stage": 3, "lora_rank": 2, **IN_REWARD},
    "few_0": {"zero_stage": 0, **IN_REWARD},
    "few_3": {"zero_stage": 3, "advantage_estimator": "ppo", "critic_lr": EPSILON},
}
SKIPPED = ("zero_0", "ppo_2", "ppo_3", "lora_3")
"""Cases that go on with a step without finite gradient, a checkpoint, and a second trainer that takes it over."""
PASSES = {"lora_0": {"policy": 14}, "lora_3": {"policy": 21}, "ppo_3": {"policy": 14, "critic": 7, "reference": 7}}
"""Passes of one rank: 7 rows for `sample_log_probs`, the old log-probs, the reference (the policy itself for adapters) and values."""


def run_ranks(ranks: int, jobs: dict, folder: Path) -> list[dict]:
    """What each rank says of each case; the change of the weights is beside it, in CASE.npz."""
    folder.mkdir()
    (folder / "jobs.json").write_text(json.dumps(jobs))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = os.environ | {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", WORKER, str(folder / "jobs.json"), str(folder)]
    workers = [subprocess.Popen(command, env=environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(ranks)]
    assert [worker.wait(timeout=600) for worker in workers] == [0] * ranks
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(ranks)]


@pytest.fixture(scope="module")
def results(model_path, make_groups, tmp_path_factory):
    """By number of ranks: the folder and the answers of the ranks."""
    folder, jobs = tmp_path_factory.mktemp("ranks"), {}
    for name, changes in CASES.items():
        rows = make_groups(1, 2 if name.startswith("few") else 8)[0]
        rows[0].remove_sample = True
        rows[1].rollout_log_probs = [-2.5] * rows[1].response_length
        jobs[name] = {"config": PLAIN | changes, "groups": [[sample.to_dict() for sample in rows]], "model": model_path}
        jobs[name] |= {"skipped": True} if name in SKIPPED else {}
    found = {1: (folder / "1", run_ranks(1, jobs, folder / "1"))}
    jobs["zero_0"]["foreign"] = str(folder / "1" / "zero_0")
    return found | {ranks: (folder / str(ranks), run_ranks(ranks, jobs, folder / str(ranks))) for ranks in (2, 3)}


def close(values):
    return pytest.approx(values, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("case", CASES)
def test_case_a11_ranks_train_as_one_does(results, case, ranks):
    (one_folder, [alone]), (folder, answers) = results[1], results[ranks]
    expected, found = alone[case], [answer[case] for answer in answers]
    for name in expected["metrics"].keys() - {"padding_fraction"}:
        assert found[0]["metrics"][name] == close(expected["metrics"][name]), name
    assert all(other["metrics"] == found[0]["metrics"] and other["sum"] == found[0]["sum"] for other in found[1:])
    assert_same_change(changes(folder / f"{case}.npz"), changes(one_folder / f"{case}.npz"))
    if case in SKIPPED:
        assert found[0]["skipped"]["skipped_steps"] == 1.0 and found[0]["skipped"].get("critic_skipped_steps", 1.0) == 1.0


def changes(path):
    import numpy

    return dict(numpy.load(path))


def assert_same_change(ours, theirs):
    """All gradients together, and those of each tensor as far as they are more than rounding."""
    import numpy

    total = numpy.sqrt(sum(numpy.square(change).sum() for change in theirs.values()))
    off = {name: float(numpy.linalg.norm(ours[name] - change)) for name, change in theirs.items()}
    assert ours.keys() == theirs.keys() and total > 1e-3
    assert numpy.sqrt(sum(value**2 for value in off.values())) < 1e-5 * total
    for name, change in theirs.items():
        rounding = 1.2e-7 * change.size**0.5  # of weights of about 1, as they were stored
        assert off[name] < 1e-5 * numpy.linalg.norm(change) + rounding, name


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("case", CASES)
def test_ranks_share_the_passes_that_score_and_all_have_the_result(results, case, ranks):
    (_, [alone]), (_, answers) = results[1], results[ranks]
    for answer in answers:
        found = answer[case]
        for name in ("log_probs", "score"):
            assert [len(row) for row in found[name]] == [len(row) for row in alone[case][name]]
            assert all(ours == close(theirs) for ours, theirs in zip(found[name], alone[case][name], strict=True))
        if case in PASSES:
            assert found["passes"] == {model: count // 7 * -(-7 // ranks) for model, count in PASSES[case].items()}
    if case in PASSES:
        assert alone[case]["passes"] == PASSES[case]


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_checkpoint_is_taken_over_by_as_many_ranks_and_without_zero_by_any_number(results, ranks):
    for answer in results[ranks][1]:
        assert all(answer[case]["before"] == answer[case]["after"] for case in SKIPPED)
        if ranks > 1:
            assert answer["zero_0"]["foreign"] == results[1][1][0]["zero_0"]["before"]


def test_with_fewer_rows_than_ranks_some_have_nothing_of_their_own(results):
    for ranks in (2, 3):
        seen = [answer["few_0"]["seen"] for answer in results[ranks][1]]
        assert all(list(rows) == ["1"] for rows in seen), "one row is trained, and its log-probs were needed by all"


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
