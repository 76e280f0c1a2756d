"""The plugin lock: what a run writes, and what differs when its checkpoint is loaded."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import textwrap

import pytest

from vime.config.run_config import RunConfig
from vime.errors import CheckpointError, PluginError
from vime.plugins.discovery import vime_version
from vime.plugins.lock import compare_locks, make_lock, require_same
from vime.plugins.manager import PluginManager, load_reference
from vime.train.checkpoint import save_checkpoint

NUM_GPUS = 0


def plugin(name="math", version="1.0", **settings):
    return {"name": name, "distribution": f"vime-{name}", "version": version, "target": name, "settings": settings}


def test_the_lock_of_a_run(install):
    source = """
        from vime.api import Settings, hookimpl
        class P:
            class Settings(Settings):
                limit: float = 2.0
            @hookimpl
            def custom_rm(self, sample): return 1.0
        def path_rm(args, sample): return 1.0
    """
    install("vime-p", version="1.2", plugins={"p": "zoo_p:P"}, modules={"zoo_p.py": source})
    manager = PluginManager.load(RunConfig(plugin=["p"], plugin_settings={"p": {"limit": 3}}, custom_rm_path="zoo_p.path_rm"))
    assert json.loads(json.dumps(manager.lock())) == {
        "format": 1,
        "vime": vime_version(),
        "plugins": [{"name": "p", "distribution": "vime-p", "version": "1.2", "target": "zoo_p:P", "settings": {"limit": 3.0}}],
        "paths": {"custom_rm_path": ["zoo_p.path_rm"]},
    }


def test_no_secret_is_in_a_lock_and_another_one_makes_no_difference(monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", "from-the-environment")
    lock = make_lock([plugin(api_key="first-secret", url="http://h/?k=from-the-environment")], {})
    assert "first-secret" not in str(lock)
    assert lock["plugins"][0]["settings"] == {"api_key": "***", "url": "http://h/?k=***"}
    other = make_lock([plugin(api_key="second-secret", url="http://h/?k=from-the-environment")], {})
    assert compare_locks(lock, other) == []
    require_same(lock, other, "worker 1")


def test_a_lock_that_tells_a_secret_is_compared_without_telling_it_again():
    told = {**make_lock([plugin(limit=1)], {}), "plugins": [plugin(api_key="first-secret", limit=1)]}
    assert compare_locks(told, make_lock([plugin(api_key="second-secret", limit=1)], {})) == []
    (warning,) = compare_locks(told, make_lock([plugin(limit=1)], {}))
    assert warning.endswith("setting api_key is None, in the checkpoint '***'")


def test_a_secret_type_reaches_another_process_and_no_lock(install):
    source = """
        from pydantic import SecretStr
        from vime.api import Settings, hookimpl
        class P:
            class Settings(Settings):
                login: SecretStr
            @hookimpl
            def custom_rm(self, sample): return float(self.settings.login.get_secret_value() == "hush-hush-hush")
    """
    install("vime-p", version="1.2", plugins={"p": "zoo_secret:P"}, modules={"zoo_secret.py": source})
    manager = PluginManager.load(RunConfig(plugin=["p"], plugin_settings={"p": {"login": "hush-hush-hush"}}))
    assert "hush" not in str(manager.lock())
    reference = manager.plugins[0].hooks["custom_rm"].reference
    assert load_reference(reference).call(args=None, sample=None, samples=None) == 1.0


def test_the_same_plugins_give_no_warning():
    lock = make_lock([plugin(limit=1)], {"custom_rm_path": ["a.b"]})
    assert compare_locks(lock, copy.deepcopy(lock)) == []


@pytest.mark.parametrize(
    ("saved", "current", "warning"),
    [
        (
            [plugin()],
            [plugin(version="2.0")],
            "the checkpoint was made with plugin 'math' (vime-math 1.0), and this run has plugin 'math' (vime-math 2.0)",
        ),
        ([plugin(limit=1)], [plugin(limit=2)], "plugin 'math' (vime-math 1.0): setting limit is 2, in the checkpoint 1"),
        ([plugin()], [plugin(), plugin("sft")], "plugin 'sft' (vime-sft 1.0) is enabled, and the checkpoint was made without it"),
        ([plugin(), plugin("sft")], [plugin("sft"), plugin()], "the plugins are in another order than in the checkpoint: math, sft"),
    ],
)
def test_a_difference_is_a_warning_that_names_both(saved, current, warning):
    assert compare_locks(make_lock(saved, {}), make_lock(current, {})) == [warning]


def test_another_path_function_is_a_warning():
    before, after = make_lock([], {"custom_rm_path": ["a.b"]}), make_lock([], {})
    assert compare_locks(before, after) == ["--custom-rm-path is not set, and was a.b in the checkpoint"]


def test_a_missing_plugin_is_an_error():
    with pytest.raises(PluginError, match=r"made with plugin 'math' \(vime-math 1\.0\), which this run does not enable") as caught:
        compare_locks(make_lock([plugin(), plugin("sft")], {}), make_lock([plugin("sft")], {}))
    assert caught.value.hint == "--plugin math, or --ignore-plugin-lock to go on without"


def test_names_are_compared_as_pep_503_does():
    before, after = plugin("non-zero"), plugin("non-zero") | {"name": "Non_Zero"}
    assert compare_locks(make_lock([before], {}), make_lock([after], {})) == []


def test_a_worker_must_have_exactly_the_drivers_plugins():
    lock = make_lock([plugin()], {})
    require_same(lock, copy.deepcopy(lock), "node 10.0.0.2")


@pytest.mark.parametrize(
    ("here", "difference"),
    [
        (make_lock([plugin()], {}) | {"vime": "0.0.0"}, r"vime is 0\.0\.0, and .* in the driver"),
        (make_lock([], {}), r"plugin 'math' \(vime-math 1\.0\) is missing"),
        (make_lock([plugin(version="2.0")], {}), r"it has plugin 'math' \(vime-math 2\.0\), the driver plugin 'math' \(vime-math 1\.0\)"),
        (
            make_lock([plugin(timeout=9)], {}),
            r"plugin 'math' \(vime-math 1\.0\) has settings \{'timeout': 9\} there, and \{\} in the driver",
        ),
        (make_lock([plugin(), plugin("sft")], {}), r"it has plugin 'math' .*, plugin 'sft' .*, the driver plugin 'math'"),
        (make_lock([plugin()], {"custom_rm": ["a.b"]}), r"its path functions are \{'custom_rm': \['a\.b'\]\}, those of the driver \{\}"),
    ],
)
def test_a_worker_with_other_plugins_is_refused_with_its_node_and_the_difference(here, difference):
    with pytest.raises(PluginError, match=r"node 10\.0\.0\.2 does not have the driver's plugins: " + difference):
        require_same(make_lock([plugin()], {}), here, "node 10.0.0.2")


@pytest.mark.parametrize(
    "changes",
    [
        {"format": 99},
        {"vime": None},
        {"plugins": None},
        {"plugins": ["math"]},
        {"plugins": [{"name": "math"}]},
        {"plugins": [{**plugin(), "settings": None}]},
        {"paths": None},
        {"paths": {"custom_rm_path": None}},
    ],
)
def test_a_checkpoint_without_a_lock(changes):
    lock = make_lock([plugin()], {"custom_rm_path": ["a.b"]})
    with pytest.raises(CheckpointError, match="the checkpoint holds no plugin lock of format 1"):
        compare_locks({**lock, **changes}, lock)


def test_a_missing_plugin_is_refused_before_anything_heavy_is_imported(tmp_path, install, site):
    install(
        "vime-p",
        plugins={"p": "zoo_p"},
        modules={"zoo_p.py": "from vime.api import hookimpl\n@hookimpl\ndef custom_rm(sample): return 1.0"},
    )
    (tmp_path / "data.jsonl").write_text('{"input": "1+1="}')
    manifest = {"lock": make_lock([plugin("gone")], {}), "rollout_id": 1}
    save_checkpoint(tmp_path / "old", 1, lambda folder: None, manifest)
    words = ["--plugin", "p", "--load", str(tmp_path / "old"), "--prompt-data", str(tmp_path / "data.jsonl"), "--model", str(tmp_path)]
    script = f"""
        import sys
        from vime.cli.flags import parse_flags, resolve
        from vime.errors import PluginError
        from vime.loop import train
        try:
            train(resolve(parse_flags({words!r}), {{}}, check_files=False))
        except PluginError as error:
            print(error.message)
        assert not {{"torch", "transformers", "vllm", "deepspeed"}} & set(sys.modules)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(site), *sys.path])},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "the checkpoint was made with plugin 'gone' (vime-gone 1.0), which this run does not enable\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.jsonl", "old", "site"]


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
