"""What `auto` means as a number format."""

import pytest

from vime.train import precision
from vime.train.precision import cpu_emulates_bfloat16, engine_dtype_name, train_dtype_name

NUM_GPUS = 0


@pytest.mark.parametrize(
    ("cpu_info", "expected"),
    [
        ("flags\t\t: fpu sse avx avx2 fma\n", True),
        ("flags\t\t: fpu avx avx2 avx512f avx512_bf16 amx_tile\n", False),
        ("processor\t: 0\nFeatures\t: fp asimd bf16\n", False),
        (None, False),
    ],
    ids=["AVX2", "AVX-512", "ARM", "no such file"],
)
def test_which_processors_emulate_bfloat16(monkeypatch, tmp_path, cpu_info, expected):
    monkeypatch.setattr(precision, "CPU_INFO", tmp_path / "cpuinfo")
    if cpu_info is not None:
        (tmp_path / "cpuinfo").write_text(cpu_info)
    assert cpu_emulates_bfloat16() is expected


@pytest.mark.parametrize("emulated", [True, False])
def test_the_engine_takes_the_format_of_the_trainer_unless_it_is_emulated(monkeypatch, emulated):
    monkeypatch.setattr(precision, "cpu_emulates_bfloat16", lambda: emulated)
    assert engine_dtype_name("auto", "bfloat16", on_cpu=True) == ("float32" if emulated else "bfloat16")
    assert engine_dtype_name("auto", "bfloat16", on_cpu=False) == "bfloat16"
    assert engine_dtype_name("auto", "float32", on_cpu=True) == "float32"
    assert engine_dtype_name("bfloat16", "float32", on_cpu=True) == "bfloat16", "what was asked for stays"


def test_a_small_model_trains_in_float32_on_a_cpu():
    assert train_dtype_name("auto", 10**6, on_cpu=True) == "float32"
    assert train_dtype_name("auto", 10**6, on_cpu=False) == train_dtype_name("auto", 10**9, on_cpu=True) == "bfloat16"
    assert train_dtype_name("float32", 10**9, on_cpu=False) == "float32"


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
