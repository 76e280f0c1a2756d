"""Plugin faults that users of such systems reported in public, each by its id: the input, cut down, and the right behaviour."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from vime.cli.app import main
from vime.config.run_config import RunConfig
from vime.errors import PluginError
from vime.outputs import DynamicFilterOutput
from vime.plugins.discovery import discover
from vime.plugins.manager import PluginManager
from vime.rollout.dynamic_sampling import judge
from vime.sample import Sample

NUM_GPUS = 0

HEAD = "from vime.api import hookimpl\n"
REWARD = HEAD + "@hookimpl\ndef custom_rm(sample): return 1.0\n"


@pytest.fixture
def refused(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """`vime train ARGS...` with a model and data that look right: its error line and hint, with exit code 2 and no run folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(site), prepend=os.pathsep)  # for processes that the command may start
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "data.jsonl").write_text('{"input": "1+1=", "label": "2"}')

    def run(*arguments: str) -> tuple[str, str]:
        given = ("--model", ".", "--prompt-data", "data.jsonl", "--label-key", "label", "--run-dir", "run")
        assert main(["train", *given, *arguments]) == 2
        error, hint = capsys.readouterr().err.splitlines()
        assert not (tmp_path / "run").exists()
        return error, hint.strip()

    return run


def test_case_k1_an_unknown_parameter_is_refused_and_the_plugin_not_registered(install, refused):
    install("vime-k1", plugins={"k1": "zoo_k1"}, modules={"zoo_k1.py": HEAD + "@hookimpl\ndef custom_rm(sample, model): return 1.0\n"})
    manager = PluginManager()
    with pytest.raises(PluginError):
        manager.enable(discover().find("k1"))
    assert manager.plugins == () and manager.implementations("custom_rm") == [] and manager.lock()["plugins"] == []
    error, hint = refused("--plugin", "k1")
    assert error == "error: plugin 'k1' (vime-k1 1.0): custom_rm has the parameter 'model', which this hook does not pass"
    assert hint == "hint: custom_rm may take: args, sample, samples"


def test_case_k3_a_misspelt_hook_is_refused_with_the_right_name(install, refused):
    source = HEAD + "@hookimpl\ndef dynamic_sampling_fitler(samples): return True\n"
    install("vime-k3", plugins={"k3": "zoo_k3"}, modules={"zoo_k3.py": source})
    error, hint = refused("--plugin", "k3")
    assert error == "error: plugin 'k3' (vime-k3 1.0): there is no hook 'dynamic_sampling_fitler'"
    assert hint == "hint: did you mean 'dynamic_sampling_filter'?"


def test_case_k4_an_async_and_a_sync_implementation_of_one_hook_both_work(install):
    for name, keyword in (("sync", "def"), ("async", "async def")):
        source = HEAD + f"@hookimpl\n{keyword} dynamic_sampling_filter(samples): return samples[0].label != {name!r}\n"
        install(f"vime-k4-{name}", plugins={name: f"zoo_k4_{name}"}, modules={f"zoo_k4_{name}.py": source})
    config = RunConfig(plugin=["sync", "async"])
    filters = PluginManager.load(config).implementations("dynamic_sampling_filter")
    verdicts = {label: asyncio.run(judge(filters, config, [Sample(label=label)])) for label in ("sync", "async", "other")}
    assert verdicts["sync"].reason == "sync" and verdicts["async"].reason == "async"
    assert verdicts["other"] == DynamicFilterOutput(keep=True)


def test_case_k6_plugins_loaded_twice_are_registered_once(install):
    install("vime-k6", plugins={"k6": "zoo_k6"}, modules={"zoo_k6.py": REWARD})
    managers = [PluginManager.load(RunConfig(plugin=["k6", "K6", "k6"])) for _ in range(2)]
    for manager in managers:
        assert [plugin.name for plugin in manager.plugins] == ["k6"]
        assert len(manager.implementations("custom_rm")) == 1
    assert managers[0].lock() == managers[1].lock()
    with pytest.raises(PluginError, match="already enabled"):
        managers[0].enable(discover().find("k6"))
    assert len(managers[0].implementations("custom_rm")) == 1


def test_case_k6_a_spawned_child_has_the_same_list(install, site):
    for name in ("k6b", "k6a"):
        install(f"vime-{name}", plugins={name: f"zoo_{name}"}, modules={f"zoo_{name}.py": REWARD})
    code = (
        "import json; from vime.config.run_config import RunConfig; from vime.plugins.manager import PluginManager;"
        "print(json.dumps(PluginManager.load(RunConfig(plugin=['k6b', 'k6a'])).lock()))"
    )
    child = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ | {"PYTHONPATH": str(site)}
    )
    assert json.loads(child.stdout) == PluginManager.load(RunConfig(plugin=["k6b", "k6a"])).lock()


@pytest.mark.parametrize("name", ["Math-Like", "math_like", "MATH.like"])
def test_case_k8_names_are_resolved_as_pep_503_does(install, name):
    install("vime-k8", plugins={"math-like": "zoo_k8"}, modules={"zoo_k8.py": REWARD})
    assert [plugin.name for plugin in PluginManager.load(RunConfig(plugin=[name])).plugins] == ["math-like"]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("vime_k8", "hint: vime-k8 is a distribution; --plugin takes the names of its plugins: math-like"),
        ("math_liek", "hint: did you mean --plugin math-like?"),
        ("zzzzzz", "hint: see `vime plugin list` for what is installed, and pip install the distribution that brings it"),
    ],
)
def test_case_k8_other_names_are_refused_with_what_is_installed(install, refused, name, hint):
    install("vime-k8", plugins={"math-like": "zoo_k8"}, modules={"zoo_k8.py": REWARD})
    error, advice = refused("--plugin", name)
    assert error.startswith(f"error: there is no plugin {name!r}; installed: ") and "math-like" in error
    assert advice == hint


@pytest.mark.parametrize("name", ["Math", "rm_math", "vime-rm-math"])
def test_case_k8_a_known_plugin_that_is_not_installed_has_its_pip_line(install, site, name):
    install("vime-k8", plugins={"math-like": "zoo_k8"}, modules={"zoo_k8.py": REWARD})
    with pytest.raises(PluginError, match=f"there is no plugin '{name}'; installed: math-like") as caught:
        discover([str(site)]).find(name)
    assert caught.value.hint.startswith("pip install vime-rm-math")


@pytest.mark.skipif(find_spec("torch") is None, reason="a run without the extra is refused before its rewards are looked at")
def test_case_k9_two_rewards_and_no_rm_type_are_a_conflict_that_names_both(install, refused):
    for name in ("first", "second"):
        install(f"vime-k9-{name}", plugins={name: f"zoo_k9_{name}"}, modules={f"zoo_k9_{name}.py": REWARD})
    error, hint = refused("--plugin", "first", "--plugin", "second")
    assert "plugin 'first' (vime-k9-first 1.0) and plugin 'second' (vime-k9-second 1.0)" in error
    assert "--rm-type first" in hint


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
