"""What a trainer refuses to go on from, before DeepSpeed opens a file."""

import json

import pytest

from vime.errors import CheckpointError
from vime.train.trainer_state import STATE_FILE

NUM_GPUS = 0

pytest.importorskip("torch")


@pytest.mark.parametrize(
    ("key", "was", "now"), [("train_dtype", "bfloat16", "float32"), ("zero_stage", 2, 0), ("ranks", 4, 1)], ids=["dtype", "stage", "ranks"]
)
def test_the_state_of_another_setting_is_refused_by_name(make_config, make_trainer, tmp_path, key, was, now):
    trainer = make_trainer(make_config(zero_stage=2 if key == "ranks" else 0))
    trainer.save(tmp_path)
    for file in (tmp_path / "deepspeed").rglob("*.pt"):
        file.write_bytes(b"not a pickle: it must not be opened")
    state = json.loads((tmp_path / STATE_FILE).read_text())
    assert state["identity"][key] == now
    state["identity"][key] = was
    (tmp_path / STATE_FILE).write_text(json.dumps(state))
    with pytest.raises(CheckpointError, match=f"was written with {key} {was}, this run has {now}") as caught:
        trainer.load(tmp_path)
    assert f"--hf-checkpoint {tmp_path}" in str(caught.value)


def test_own_files_are_json_and_safetensors(make_config, make_trainer, tmp_path):
    make_trainer(make_config()).save(tmp_path)
    own = {path.suffix for path in tmp_path.rglob("*") if path.is_file() and "deepspeed" not in path.parts}
    assert own == {".json", ".safetensors"}


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
