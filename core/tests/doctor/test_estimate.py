"""What is calculated from the headers of a model's files, against numbers by hand."""

import json

import pytest

from vime.config.run_config import RunConfig
from vime.doctor.estimate import GIB, estimate, read_model
from vime.doctor.machine import Gpu, Machine
from vime.doctor.space import disk_findings, memory_findings, runs_folder
from vime.runtime.ray.plan import Node, plan

NUM_GPUS = 0

CONFIG = {"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 1024, "max_position_embeddings": 4096}


def model_folder(path, *, tied=False, config=CONFIG):
    """2 M parameters of a matrix and 1 M of an embedding, and a head that is the embedding where it is tied."""
    tensors = {"model.layers.0.up_proj.weight": [2048, 1024], "model.embed_tokens.weight": [1024, 1024]}
    if tied:
        tensors["lm_head.weight"] = [1024, 1024]
    header = json.dumps(
        {"__metadata__": {}, **{name: {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]} for name, shape in tensors.items()}}
    )
    path.mkdir(exist_ok=True)
    (path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header.encode())
    (path / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": tied}))
    return path


M = 2**20


@pytest.fixture
def model(tmp_path):
    return read_model(model_folder(tmp_path / "model"))


def machine(*, memory=16.0, free=16.0, gpus=()):
    return Machine("Linux", False, 2.0, 2, memory, free, tuple(gpus), 8.0, 65536)


def test_parameters_are_those_of_the_headers_and_a_tied_head_counts_once(model, tmp_path):
    assert (model.parameters, model.linear, model.is_tied) == (3 * M, ((2048, 1024),), False)
    tied = read_model(model_folder(tmp_path / "tied", tied=True))
    assert (tied.parameters, tied.is_tied) == (3 * M, True)


def test_shards_are_those_of_the_index(tmp_path):
    folder = model_folder(tmp_path / "model")
    (folder / "model.safetensors").rename(folder / "part.safetensors")
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "part.safetensors", "b": "part.safetensors"}}')
    (folder / "other.safetensors").write_bytes(b"not one")
    assert read_model(folder).parameters == 3 * M


def test_files_without_headers_are_measured(tmp_path):
    folder = model_folder(tmp_path / "model", config={**CONFIG, "dtype": "bfloat16"})
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(bytes(2000))
    assert read_model(folder).parameters == 1000


def mib(parts):
    return {name: round(1024 * size, 3) for name, size in parts.items()}


def test_float32_on_a_cpu(model):
    needed = estimate(RunConfig(), model, on_gpu=False)
    assert (needed.train_dtype, needed.engine_dtype, needed.trained) == ("float32", "float32", 3 * M)
    assert mib(needed.rank) == {"weights": 12, "gradients": 12, "optimizer": 24} and needed.rank_on_host == {}
    # 2 x 2 layers x 1024 x 4 bytes = 16 KiB a token; 256 sequences of 1024 + 512 tokens are 6 GiB, more than the bound of 4.
    assert mib(needed.engine) == {"weights": 12, "KV cache": 4096}
    assert needed.disk * 1024 == 12 + 36


def test_an_engine_below_float32_on_a_cpu_has_its_output_head_in_float32_too(tmp_path):
    other = read_model(model_folder(tmp_path / "other", config={**CONFIG, "vocab_size": 1024}))
    config = RunConfig(engine_dtype="bfloat16", engine_tp=2, runtime="ray", vllm_kv_cache_gib=1.0)
    assert mib(estimate(config, other, on_gpu=False).engine) == {"weights": 3, "output head": 2, "KV cache": 512}
    assert "output head" not in estimate(config, other, on_gpu=True).engine


@pytest.mark.parametrize(("stage", "weights", "gradients", "optimizer"), [(0, 6, 18, 9), (1, 6, 18, 9), (2, 6, 4.5, 9), (3, 1.5, 4.5, 9)])
def test_zero_splits_over_the_ranks_and_bfloat16_has_float32_copies(model, stage, weights, gradients, optimizer):
    config = RunConfig(runtime="ray", trainer_ranks=4, zero_stage=stage, train_dtype="bfloat16")
    assert mib(estimate(config, model, on_gpu=False).rank) == {"weights": weights, "gradients": gradients, "optimizer": optimizer}


def test_adapters_are_trained_alone_and_need_no_second_model(model):
    config = RunConfig(lora_rank=8, use_kl_loss=True, kl_loss_coef=0.1)
    needed = estimate(config, model, on_gpu=False)
    assert needed.trained == 8 * (2048 + 1024)
    assert set(needed.rank) == {"weights", "gradients", "optimizer"}
    assert needed.rank["optimizer"] == pytest.approx(8 * needed.trained / GIB)


def test_reference_critic_and_offloading(model):
    config = RunConfig(
        use_kl_loss=True, kl_loss_coef=0.1, advantage_estimator="ppo", zero_stage=1, optimizer_offload=True, ref_offload=True
    )
    on_cpu = estimate(config, model, on_gpu=False)
    assert mib(on_cpu.rank) == {"weights": 24, "gradients": 24, "optimizer": 48, "reference": 12}
    on_gpu = estimate(config, model, on_gpu=True, gpu_gib=80.0)
    assert set(on_gpu.rank) == {"weights", "gradients"} and mib(on_gpu.rank_on_host) == {"optimizer": 72, "reference": 6}
    assert on_gpu.engine["weights"] + on_gpu.engine["KV cache"] == pytest.approx(40.0)
    assert estimate(config, model, on_gpu=True).engine.keys() == {"weights"}


def test_what_does_not_fit_stops_and_what_is_taken_warns(model):
    config = RunConfig(vllm_kv_cache_gib=4.0)
    needed = estimate(config, model, on_gpu=False)
    assert memory_findings(config, needed, machine(), None, []) == []
    (found,) = memory_findings(config, needed, machine(memory=4.0, free=1.0), None, [])
    assert found.level == "stops" and "needs 4.1 GiB of memory, and this machine has 4.0 GiB" in found.text
    (found,) = memory_findings(config, needed, machine(free=1.0), None, [])
    assert found.level == "warning" and "1.0 of 16.0 GiB are free now" in found.text


def test_each_node_of_a_plan_has_its_own_memory(model):
    config = RunConfig(runtime="ray", trainer_ranks=1, engines=4, engine_tp=2, vllm_kv_cache_gib=4.0)
    nodes = [Node("a", cpus=2, memory_gib=16.0), Node("b", cpus=2, memory_gib=8.0)]
    needed = estimate(config, model, on_gpu=False)
    assert needed.engine["KV cache"] == 2.0, "half of it in each process"
    (found,) = memory_findings(config, needed, machine(), plan(config, nodes), nodes)
    assert found.level == "stops" and "0 ranks and 2 engines on node b need 8.0 GiB, and it has 8.0 GiB" in found.text


def test_a_gpu_that_engine_and_trainer_share(model):
    config = RunConfig()
    small = machine(gpus=[Gpu("small", 0.05, None)])
    needed = estimate(config, model, on_gpu=True, gpu_gib=0.05)
    (found,) = memory_findings(config, needed, small, None, [])
    assert found.level == "stops" and "engine and trainer on a GPU" in found.text
    separate = RunConfig(runtime="ray")
    nodes = [Node("a", cpus=2, gpus=2)]
    (found,) = memory_findings(separate, needed, small, plan(separate, nodes), nodes)
    assert "a rank or an engine on a GPU" in found.text
    assert memory_findings(config, needed, machine(gpus=[Gpu("large", 80.0, None)]), None, []) == []


def test_checkpoints_that_do_not_fit_onto_the_disk(model, tmp_path, monkeypatch):
    config = RunConfig(run_dir=str(tmp_path / "not" / "there"), save_interval=1, keep_checkpoints=2)
    needed = estimate(config, model, on_gpu=False)
    assert runs_folder(config) == tmp_path
    monkeypatch.setattr("vime.doctor.space.free_disk", lambda _: 0.1)
    (found,) = disk_findings(config, tmp_path, needed)
    assert found.level == "warning" and found.text.startswith("3 checkpoints take ")
    assert found.text.endswith(f" MiB, and {tmp_path} has 102 MiB free"), "a small model on a small disk is no 0.0 GiB"
    assert disk_findings(RunConfig(), tmp_path, needed) == []
    assert disk_findings(config.model_copy(update={"debug_rollout_only": True}), tmp_path, needed) == []


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
