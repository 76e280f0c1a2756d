"""The manager: order, composition by kind, conflicts, settings, times, state, and functions in other processes."""

from __future__ import annotations

import asyncio
import inspect
import os
import pickle
import subprocess
import sys
import threading
from typing import Any

import pytest
from pydantic import field_validator, model_validator

from vime.api import Sample, Settings, hookimpl
from vime.config.run_config import RunConfig
from vime.errors import ConfigError, ContractError, PluginError
from vime.plugins.manager import PluginManager

NUM_GPUS = 0


class One:
    class Settings(Settings):
        weight: float = 1.0
        """The reward of every sample."""
        kinds: tuple[str, ...] = ()

        @field_validator("weight")
        @classmethod
        def not_negative(cls, value: float) -> float:
            if value < 0:
                raise ValueError("below zero")
            return value

        @model_validator(mode="after")
        def fit(self) -> One.Settings:
            assert not self.kinds or self.weight < 5, f"{self.weight} is too much for {self.kinds[0]}"
            return self

    def __init__(self, settings: One.Settings) -> None:
        self.settings = settings

    @hookimpl
    def custom_rm(self, sample):
        return self.settings.weight


HEAD = """from __future__ import annotations
from pydantic import field_validator, model_validator
from vime.api import Settings, hookimpl
"""
ONE = f"{HEAD}\n{inspect.getsource(One)}"


class Keeper:
    @hookimpl
    def dynamic_sampling_filter(self, args, samples):
        return True


class Claimer:
    @hookimpl
    def generate_rollout(self, args, evaluation=False):
        return evaluation


class OtherClaimer(Claimer): ...


class Counting:
    def __init__(self):
        self.count = 0

    @hookimpl
    def process_all_samples(self, all_samples):
        self.count += len(all_samples)

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


REWARD = "from vime.api import hookimpl\n\n@hookimpl\ndef custom_rm(sample):\n    return {value}\n"


def names(functions):
    return [function.plugin for function in functions]


def test_the_order_is_the_users(install):
    for name in ("a", "b", "c"):
        install(f"vime-{name}", plugins={name: f"zoo_{name}"}, modules={f"zoo_{name}.py": REWARD.format(value=1)})
    assert names(PluginManager.load(RunConfig(plugin=["b", "c", "a"])).implementations("custom_rm")) == ["b", "c", "a"]
    assert names(PluginManager.load(RunConfig(plugin=["a", "b", "c"])).implementations("custom_rm")) == ["a", "b", "c"]


def test_only_what_is_named_is_imported(install):
    install("vime-a", plugins={"a": "zoo_a"}, modules={"zoo_a.py": REWARD.format(value=1)})
    install("vime-broken", plugins={"broken": "zoo_broken"}, modules={"zoo_broken.py": "1/0"})
    assert [plugin.name for plugin in PluginManager.load(RunConfig(plugin=["a"])).plugins] == ["a"]
    with pytest.raises(PluginError, match="plugin 'broken'"):
        PluginManager.load(RunConfig(plugin=["a", "broken"]))


def test_no_plugin_subtracts_and_repeats_count_once(install):
    for name in ("a", "b-c"):
        install(f"vime-{name}", plugins={name: f"zoo_{name[0]}"}, modules={f"zoo_{name[0]}.py": REWARD.format(value=1)})
    assert names(PluginManager.load(RunConfig(plugin=["a", "b-c", "A"], no_plugin=["B_c"])).implementations("custom_rm")) == ["a"]
    assert PluginManager.load(RunConfig(plugin=["a"], no_plugin=["b-c"])).get("b_c") is None
    with pytest.raises(PluginError, match="--no-plugin b_d: there is no plugin of this name") as caught:
        PluginManager.load(RunConfig(plugin=["a", "b-c"], no_plugin=["b_d"]))
    assert caught.value.hint == "did you mean 'b-c'?"


def test_loading_twice_gives_the_same_and_separate_managers(install):
    install("vime-a", plugins={"a": "zoo_a"}, modules={"zoo_a.py": REWARD.format(value=1)})
    first, second = PluginManager.load(RunConfig(plugin=["a"])), PluginManager.load(RunConfig(plugin=["a"]))
    assert first.lock() == second.lock() and len(first.plugins) == len(second.plugins) == 1


def test_a_spawned_child_has_the_same_list(install, site):
    install("vime-a", plugins={"a": "zoo_a"}, modules={"zoo_a.py": REWARD.format(value=1)})
    code = (
        "from vime.config.run_config import RunConfig; from vime.plugins.manager import PluginManager;"
        "print(*(plugin.label for plugin in PluginManager.load(RunConfig(plugin=['A'])).plugins), sep=';')"
    )
    env = os.environ | {"PYTHONPATH": str(site)}
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    here = PluginManager.load(RunConfig(plugin=["a"])).plugins
    assert child.stdout.strip() == ";".join(plugin.label for plugin in here) == "plugin 'a' (vime-a 1.0)"


def test_two_plugins_that_claim_one_hook_are_refused_by_name():
    manager = PluginManager()
    manager.add(Claimer, name="first")
    manager.add(OtherClaimer, name="second")
    with pytest.raises(PluginError) as caught:
        manager.check_conflicts()
    assert caught.value.message == "plugin 'first' and plugin 'second' both implement generate_rollout, which only one plugin can"
    assert caught.value.hint == "leave one of them out: --no-plugin second, or choose a function with --rollout-function-path"


def test_a_path_function_settles_a_conflict(install):
    source = "from vime.api import hookimpl\n\n@hookimpl\ndef buffer_filter(buffer):\n    return buffer\n"
    for name in ("a", "b"):
        install(f"vime-{name}", plugins={name: f"zoo_{name}"}, modules={f"zoo_{name}.py": source})
    with pytest.raises(PluginError, match=r"plugin 'a' \(vime-a 1\.0\) and plugin 'b' \(vime-b 1\.0\) both implement buffer_filter"):
        PluginManager.load(RunConfig(plugin=["a", "b"]))
    install("x", modules={"zoo_path.py": "def first(args, rollout_id, buffer, n): return buffer[:n]"})
    manager = PluginManager.load(RunConfig(plugin=["a", "b"], buffer_filter_path="zoo_path.first"))
    assert manager.claimed("buffer_filter").label == "path function zoo_path.first"


def test_several_rewards_are_no_conflict_and_none_claims():
    manager = PluginManager()
    manager.add(One, name="a")
    assert manager.claimed("custom_rm").plugin == "a"
    manager.add(One, name="b", settings={"weight": 2})
    manager.check_conflicts()
    assert manager.claimed("custom_rm") is None
    assert [function.call(args=None, sample=Sample()) for function in manager.implementations("custom_rm")] == [1.0, 2.0]


def test_filters_of_several_plugins_are_no_conflict():
    manager = PluginManager()
    manager.add(Keeper, name="a")
    manager.add(Keeper, name="b")
    manager.check_conflicts()
    assert names(manager.implementations("dynamic_sampling_filter")) == ["a", "b"]


def test_a_path_function_comes_after_the_plugins_and_claims_before_them(install):
    install("vime-a", plugins={"a": "zoo_a"}, modules={"zoo_a.py": REWARD.format(value=1), "zoo_p.py": "def rm(args, s): return 5.0"})
    manager = PluginManager.load(RunConfig(plugin=["a"], custom_rm_path="zoo_p.rm"))
    assert names(manager.implementations("custom_rm")) == ["a", "path:zoo_p.rm"]
    assert manager.claimed("custom_rm").plugin == "path:zoo_p.rm"


def test_a_repeatable_path_flag_keeps_its_order(install):
    install("x", modules={"zoo_p.py": "def a(args, sample): ...\ndef b(args, sample): ..."})
    manager = PluginManager.load(RunConfig(rollout_sample_hook_path=["zoo_p.b", "zoo_p.a"]))
    assert names(manager.implementations("rollout_sample_hook")) == ["path:zoo_p.b", "path:zoo_p.a"]


def test_the_evaluation_function_claims_evaluations_only(install):
    source = "def train(args, rollout_id, data): return 'train'\ndef evaluate(args, rollout_id, data, evaluation): return evaluation"
    install("x", modules={"zoo_p.py": source})
    manager = PluginManager.load(RunConfig(rollout_function_path="zoo_p.train", eval_function_path="zoo_p.evaluate"))
    given = {"args": None, "rollout_id": 0, "data_source": None, "engine": None}
    assert manager.claimed("generate_rollout").call(**given, evaluation=False) == "train"
    assert manager.claimed("generate_rollout", evaluation=True).call(**given, evaluation=True) is True
    assert PluginManager.load(RunConfig(rollout_function_path="zoo_p.train")).claimed("generate_rollout", evaluation=True).plugin == (
        "path:zoo_p.train"
    )


def test_nothing_claims_by_default():
    manager = PluginManager.load(RunConfig())
    assert manager.claimed("generate_rollout") is None and manager.implementations("shape_reward") == []
    with pytest.raises(KeyError, match="no hook 'shape_rewards'"):
        manager.implementations("shape_rewards")


def test_a_parameter_with_a_default_receives_what_is_passed():
    manager = PluginManager()
    manager.add(Claimer, name="a")
    given = {"args": None, "rollout_id": 0, "data_source": None, "engine": None}
    assert manager.claimed("generate_rollout").call(**given, evaluation=True) is True


def test_settings_reach_the_plugin(install):
    install(
        "vime-s",
        plugins={"my-rm": "zoo_s:One"},
        modules={"zoo_s.py": ONE},
    )
    manager = PluginManager.load(RunConfig(plugin=["my-rm"], plugin_settings={"My_RM": {"weight": "0.25"}}))
    assert vars(manager.get("my_rm").settings)["weight"] == 0.25
    assert manager.claimed("custom_rm").call(args=None, sample=Sample()) == 0.25


@pytest.mark.parametrize(
    ("settings", "message", "hint"),
    [
        ({"wieght": 1}, "unknown setting 'wieght'", "did you mean 'weight'? settings: weight, kinds"),
        ({"zzz": 1}, "unknown setting 'zzz'", "settings: weight, kinds"),
        (
            {"weight": "heavy"},
            "setting 'weight': Input should be a valid number, unable to parse string as a number, got 'heavy'",
            "settings: ",
        ),
        ({"kinds": ["a", 1]}, "setting 'kinds.1': Input should be a valid string, got 1", "settings: "),
        ({"weight": None, "zzz": 2}, "unknown setting 'zzz'", "settings: "),
        ({"weight": -1}, "setting 'weight': below zero, got -1", "settings: "),
        ({"weight": 9, "kinds": ["a"]}, "its settings do not fit together: 9.0 is too much for a", "settings: "),
    ],
)
def test_settings_that_do_not_fit_are_refused_with_the_valid_ones(settings, message, hint):
    manager = PluginManager()
    with pytest.raises(PluginError) as caught:
        manager.add(One, name="one", settings=settings)
    assert caught.value.message.startswith("plugin 'one': ") and message in caught.value.message
    assert hint in caught.value.hint
    assert manager.plugins == ()


def test_settings_of_a_plugin_that_takes_none():
    with pytest.raises(PluginError, match="plugin 'keeper': it takes no settings, but 'x' was set"):
        PluginManager().add(Keeper, name="keeper", settings={"x": 1})


def test_settings_for_a_name_that_is_nothing(install):
    install("vime-a", plugins={"alpha": "zoo_a"}, modules={"zoo_a.py": REWARD.format(value=1)})
    with pytest.raises(ConfigError, match="settings are given for the plugin 'alhpa', which is not enabled; enabled: alpha") as caught:
        PluginManager.load(RunConfig(plugin=["alpha"], plugin_settings={"alhpa": {}}))
    assert caught.value.hint == "did you mean 'alpha'?"


def test_a_class_without_a_constructor_finds_its_settings():
    class Plain:
        class Settings(Settings):
            limit: int = 3

        settings: Any

        @hookimpl
        def shape_reward(self, sample):
            return self.settings.limit

    manager = PluginManager()
    manager.add(Plain, name="plain", settings={"limit": 4})
    assert manager.implementations("shape_reward")[0].call(args=None, sample=Sample()) == 4


class Seeing:
    count = 0

    def __init__(self):
        self.seen = []

    @hookimpl
    def process_all_samples(self, all_samples):
        self.count += 1
        self.seen.append(all_samples)


def test_two_managers_do_not_see_each_other():
    first, second = PluginManager(), PluginManager()
    one, two = first.add(Seeing, name="seeing"), second.add(Seeing, name="seeing")
    first.implementations("process_all_samples")[0].call(all_samples=1)
    assert (one.obj.count, one.obj.seen, two.obj.count, two.obj.seen, Seeing.count) == (1, [1], 0, [], 0)
    assert first.take_timings() and not second.take_timings()
    first.add(Keeper, name="keeper")
    assert second.get("keeper") is None and second.implementations("dynamic_sampling_filter") == []


def test_settings_are_frozen():
    manager = PluginManager()
    with pytest.raises(ValueError, match="frozen"):
        setattr(manager.add(One, name="one").settings, "weight", 2)  # noqa: B010


def test_one_name_is_enabled_once():
    manager = PluginManager()
    manager.add(One, name="one")
    with pytest.raises(PluginError, match="plugin 'ONE': a plugin of this name is already enabled"):
        manager.add(Keeper, name="ONE")


class Failing:
    @hookimpl
    def custom_rm(self, sample):
        raise ZeroDivisionError("by zero")

    @hookimpl
    async def rollout_sample_hook(self, sample):
        await asyncio.sleep(0)
        raise LookupError("gone")


def test_an_exception_keeps_its_type_and_names_the_plugin():
    manager = PluginManager()
    manager.add(Failing, name="failing")
    with pytest.raises(ZeroDivisionError, match="by zero") as caught:
        manager.claimed("custom_rm").call(args=None, sample=None)
    assert caught.value.args == ("by zero",) and caught.value.__notes__ == ["in custom_rm of plugin 'failing'"]
    hook = manager.implementations("rollout_sample_hook")[0]
    given = {"args": None, "sample": None, "rollout_id": 0, "evaluation": False}
    with pytest.raises(LookupError) as caught:
        asyncio.run(hook.acall(**given))
    assert caught.value.__notes__ == ["in rollout_sample_hook of plugin 'failing'"]


class Mixed:
    @hookimpl
    async def custom_rm(self, sample):
        await asyncio.sleep(0.01)
        return 1.0

    @hookimpl
    def shape_reward(self, sample):
        return 2.0


def test_sync_and_async_implementations_both_work():
    manager = PluginManager()
    manager.add(Mixed, name="mixed")
    reward, shape = manager.claimed("custom_rm"), manager.implementations("shape_reward")[0]
    assert reward.is_async and not shape.is_async

    async def both():
        return await reward.acall(args=None, sample=None), await shape.acall(args=None, sample=None), reward.run(args=None, sample=None)

    assert asyncio.run(both()) == (1.0, 2.0, 1.0)
    assert reward.run(args=None, sample=None) == 1.0
    times = manager.take_timings()
    assert set(times) == {"mixed/custom_rm_ms", "mixed/shape_reward_ms"}
    assert times["mixed/custom_rm_ms"] >= 30 and manager.take_timings() == {}


def test_times_of_several_threads_add_up():
    manager = PluginManager()
    manager.add(Mixed, name="mixed")
    hook = manager.implementations("shape_reward")[0]
    calls: list[str] = []
    manager.times.trace = lambda key, _: calls.append(key)
    threads = [threading.Thread(target=lambda: [hook.call(args=None, sample=None) for _ in range(100)]) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert calls == ["mixed/shape_reward"] * 400


def test_state_goes_to_the_plugin_it_came_from():
    before, after = PluginManager(), PluginManager()
    for manager in (before, after):
        manager.add(Keeper, name="stateless")
        manager.add(Counting, name="counting")
    before.implementations("process_all_samples")[0].call(args=None, all_samples=[1, 2, 3], data_source=None)
    assert before.state_dict() == {"counting": {"count": 3}}
    after.load_state_dict(before.state_dict())
    assert after.get("counting").obj.count == 3


class Stateful(Keeper):
    state: object = None

    def state_dict(self):
        if isinstance(self.state, Exception):
            raise self.state
        return self.state

    def load_state_dict(self, state): ...


def stateful(state):
    manager = PluginManager()
    manager.add(Stateful, name="stateful")
    manager.get("stateful").obj.state = state
    return manager


def test_a_state_is_a_copy():
    seen = {"rows": [1, 2]}
    state = stateful(seen).state_dict()
    seen["rows"].append(3)
    assert state == {"stateful": {"rows": [1, 2]}}
    assert stateful({"pair": (1, None)}).state_dict() == {"stateful": {"pair": [1, None]}}


@pytest.mark.parametrize(
    ("state", "what"),
    [
        ({"seen": {1, 2}}, "Object of type set is not JSON serializable"),
        ({"mean": float("nan")}, "Out of range float values are not JSON compliant"),
        ({"best": [float("inf")]}, "Out of range float values are not JSON compliant"),
        ({"by_index": [{7: "x"}]}, "7 is a key and not a string"),
        ({None: 1}, "None is a key and not a string"),
        ({(1, 2): 1}, r"\(1, 2\) is a key and not a string"),
    ],
)
def test_a_state_that_is_not_plain_json_names_its_plugin(state, what):
    with pytest.raises(ContractError, match=f"plugin 'stateful': its state_dict\\(\\) is not plain JSON data: {what}"):
        stateful(state).state_dict()


def test_an_error_in_state_dict_names_its_plugin():
    with pytest.raises(RuntimeError, match="broken") as caught:
        stateful(RuntimeError("broken")).state_dict()
    assert caught.value.__notes__ == ["in state_dict of plugin 'stateful'"]


def test_a_state_without_its_plugin_is_an_error():
    manager = PluginManager()
    manager.add(Keeper, name="keeper")
    with pytest.raises(PluginError, match="a state of plugin 'counting', which is not enabled") as caught:
        manager.load_state_dict({"counting": {}})
    assert caught.value.hint == "--plugin counting, or --ignore-plugin-lock"
    with pytest.raises(PluginError, match="which no longer has one"):
        manager.load_state_dict({"keeper": {}})
    manager.load_state_dict({"counting": {}}, ignore_missing=True)


def test_a_reference_finds_the_same_function_with_its_settings(install):
    install(
        "vime-s",
        plugins={"one": "zoo_s:One"},
        modules={"zoo_s.py": ONE},
    )
    manager = PluginManager.load(RunConfig(plugin=["one"], plugin_settings={"one": {"weight": 7}}))
    reference = pickle.loads(pickle.dumps(manager.claimed("custom_rm").reference))
    function = reference.load()
    assert function is reference.load() and function is not manager.claimed("custom_rm")
    assert function.call(args=None, sample=Sample()) == 7.0


def test_a_reference_to_another_version_is_refused(install, site):
    install("vime-s", plugins={"one": "zoo_s"}, modules={"zoo_s.py": REWARD.format(value=1)})
    reference = PluginManager.load(RunConfig(plugin=["one"])).claimed("custom_rm").reference
    (site / "vime_s-1.0.dist-info").rename(site / "gone")
    install("vime-s", version="2.0", plugins={"one": "zoo_s"})
    with pytest.raises(PluginError, match=r"plugin 'one' \(vime-s 1\.0\) is needed in this process, and vime-s 2\.0 is installed"):
        reference.load()


def test_an_object_has_no_reference():
    manager = PluginManager()
    manager.add(One, name="one")
    assert manager.claimed("custom_rm").reference is None


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
