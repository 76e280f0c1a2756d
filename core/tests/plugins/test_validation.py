"""Wrong plugins: each is refused before it is registered, by name, with what was wrong and the fix."""

from __future__ import annotations

import dataclasses

import pytest

from vime.errors import PluginError
from vime.plugins.discovery import discover
from vime.plugins.manager import PluginManager

NUM_GPUS = 0

HEAD = "import functools, contextlib\nimport pluggy\nfrom vime.api import Settings, hookimpl\n"

WRAPPER = "def wrapper(f):\n    @functools.wraps(f)\n    def inner(*a, **k): return f(*a, **k)\n    return inner\n"


@dataclasses.dataclass(frozen=True)
class Wrong:
    source: str
    message: str
    hint: str
    attr: str = ""


ZOO = {
    "misspelt_hook": Wrong(
        "@hookimpl\ndef dynamic_sampling_fitler(samples): return True",
        "there is no hook 'dynamic_sampling_fitler'",
        "did you mean 'dynamic_sampling_filter'?",
    ),
    "hook_of_nobody": Wrong(
        "@hookimpl\ndef zzz(samples): return True", "there is no hook 'zzz'", "the hooks are: make_data_source, generate_rollout"
    ),
    "misspelt_specname": Wrong(
        "@hookimpl(specname='custom_rn')\ndef mine(sample): ...", "there is no hook 'custom_rn'", "did you mean 'custom_rm'?"
    ),
    "optional_hook": Wrong(
        "@hookimpl(optionalhook=True)\ndef custom_rmm(sample): ...", "there is no hook 'custom_rmm'", "did you mean 'custom_rm'?"
    ),
    "misspelt_parameter": Wrong(
        "@hookimpl\ndef custom_rm(smaple): return 1.0",
        "custom_rm has the parameter 'smaple', which this hook does not pass",
        "did you mean 'sample'? custom_rm may take: args, sample, samples",
    ),
    "unknown_parameter": Wrong(
        "@hookimpl\ndef dynamic_sampling_filter(args, group): return True",
        "dynamic_sampling_filter has the parameter 'group'",
        "dynamic_sampling_filter may take: args, samples",
    ),
    "parameter_with_a_default_of_its_own": Wrong(
        "@hookimpl\ndef custom_rm(sample, tolerance=1e-6): return 1.0",
        "custom_rm has the parameter 'tolerance'",
        "custom_rm may take: args, sample, samples",
    ),
    "self_in_a_module": Wrong(
        "@hookimpl\ndef custom_rm(self, sample): return 1.0", "custom_rm has the parameter 'self'", "custom_rm may take"
    ),
    "no_marker": Wrong(
        "def custom_rm(sample): return 1.0\n@hookimpl\ndef shape_reward(sample): return 0",
        "custom_rm has the name of a hook but no marker, so it would never be called",
        "put @hookimpl (from vime.api) on custom_rm",
    ),
    "no_marker_in_a_class": Wrong(
        "class P:\n    def buffer_filter(self, buffer): ...\n    @hookimpl\n    def custom_rm(self, sample): ...",
        "buffer_filter has the name of a hook but no marker",
        "put @hookimpl",
        attr="P",
    ),
    "foreign_marker": Wrong(
        "@pluggy.HookimplMarker('pytest')\ndef custom_rm(sample): return 1.0",
        "custom_rm is marked for another project (pytest_impl)",
        "from vime.api import hookimpl",
    ),
    "keyword_only": Wrong(
        "@hookimpl\ndef generate_rollout(args, *, evaluation=False): ...",
        "the parameter 'evaluation' of generate_rollout is keyword-only",
        "remove the `*` before it",
    ),
    "star_args": Wrong(
        "@hookimpl\ndef custom_rm(*samples): ...",
        "custom_rm takes *samples, which nothing fills",
        "name the parameters; custom_rm may take",
    ),
    "generator": Wrong(
        "@hookimpl\ndef custom_rm(sample): yield 1.0", "custom_rm is a generator", "return the result instead of yielding it"
    ),
    "async_generator": Wrong("@hookimpl\nasync def custom_rm(sample): yield 1.0", "custom_rm is an async generator", "return the result"),
    "wrapped_generator": Wrong(
        WRAPPER + "@hookimpl\n@wrapper\ndef custom_rm(sample): yield 1.0",
        "custom_rm is a generator",
        "return the result",
    ),
    "tryfirst": Wrong(
        "@hookimpl(tryfirst=True)\ndef custom_rm(sample): ...", "custom_rm is marked @hookimpl(tryfirst=True)", "use a plain @hookimpl"
    ),
    "trylast": Wrong(
        "@hookimpl(trylast=True)\ndef custom_rm(sample): ...", "custom_rm is marked @hookimpl(trylast=True)", "the user's order of --plugin"
    ),
    "wrapper": Wrong(
        "@hookimpl(wrapper=True)\ndef shape_reward(sample):\n    return (yield)",
        "shape_reward is marked @hookimpl(wrapper=True)",
        "there are no wrappers",
    ),
    "hookwrapper": Wrong(
        "@hookimpl(hookwrapper=True)\ndef shape_reward(sample):\n    yield",
        "shape_reward is marked @hookimpl(hookwrapper=True)",
        "no wrappers",
    ),
    "marker_on_a_partial": Wrong(
        "def score(sample): ...\ncustom_rm = functools.partial(score)\nhookimpl(custom_rm)",
        "custom_rm has the marker @hookimpl, but it is a partial and would never be called",
        "put @hookimpl on a plain function or method",
    ),
    "marker_on_a_class": Wrong(
        "@hookimpl\nclass custom_rm:\n    def __call__(self, sample): ...",
        "custom_rm has the marker @hookimpl, but it is a type",
        "plain function",
    ),
    "twice": Wrong(
        "@hookimpl\ndef custom_rm(sample): ...\n@hookimpl(specname='custom_rm')\ndef other(sample): ...",
        "custom_rm and other both implement custom_rm",
        "remove one",
    ),
    "no_hooks": Wrong("def helper(): ...", "module zoo_wrong implements no hook", "mark its functions with @hookimpl"),
    "no_hooks_but_nearly": Wrong("def custom_rmm(sample): ...", "implements no hook", "custom_rmm looks like the hook custom_rm"),
    "empty_class": Wrong("class P: ...", "class P implements no hook", "mark its functions", attr="P"),
    "no_self": Wrong(
        "class P:\n    @hookimpl\n    def custom_rm(sample): ...",
        "the method custom_rm has no `self`",
        "def custom_rm(self, ...)",
        attr="P",
    ),
    "nothing_at_all_in_the_method": Wrong(
        "class P:\n    @hookimpl\n    def custom_rm(): ...", "the method custom_rm has no `self`", "def custom_rm(self", attr="P"
    ),
    "state_of_a_module": Wrong(
        "@hookimpl\ndef custom_rm(sample): ...\ndef state_dict(): ...",
        "the module has a function state_dict, which is never called",
        "make the plugin a class",
    ),
    "control_characters": Wrong("raise ValueError('a\\x1b[31mb')", "raised ValueError: a\N{REPLACEMENT CHARACTER}[31mb", "--traceback"),
    "half_a_state": Wrong(
        "class P:\n    @hookimpl\n    def custom_rm(self, sample): ...\n    def state_dict(self): ...",
        "it has state_dict but no load_state_dict",
        "add load_state_dict",
        attr="P",
    ),
    "import_error": Wrong(
        "import zoo_not_there",
        "importing zoo_wrong raised ModuleNotFoundError: No module named 'zoo_not_there'",
        "that brings 'zoo_not_there'",
    ),
    "syntax_error": Wrong("def custom_rm(:", "importing zoo_wrong raised SyntaxError: ", "--traceback shows where"),
    "system_exit": Wrong("raise SystemExit('bye')", "importing zoo_wrong raised SystemExit: bye", "--traceback shows where"),
    "raises_on_import": Wrong("1 / 0", "importing zoo_wrong raised ZeroDivisionError: division by zero", "--traceback shows where"),
    "attribute_that_is_not_there": Wrong(
        "class Rewards: ...", "names 'zoo_wrong:Reward', and zoo_wrong has no 'Reward'", "did you mean 'Rewards'?", attr="Reward"
    ),
    "target_is_a_function": Wrong(
        "@hookimpl\ndef custom_rm(sample): ...",
        "names 'zoo_wrong:custom_rm', a function",
        "a module with @hookimpl functions",
        attr="custom_rm",
    ),
    "target_is_an_instance": Wrong(
        "class P:\n    @hookimpl\n    def custom_rm(self, sample): ...\np = P()",
        "names 'zoo_wrong:p', a P",
        "a class with @hookimpl methods",
        attr="p",
    ),
    "class_that_raises": Wrong(
        "class P:\n    def __init__(self): raise ValueError('no GPU\\nhere')\n    @hookimpl\n    def custom_rm(self, sample): ...",
        "building P raised ValueError: no GPU here",
        "--traceback shows where",
        attr="P",
    ),
    "class_that_wants_more": Wrong(
        "class P:\n    def __init__(self, model): ...\n    @hookimpl\n    def custom_rm(self, sample): ...",
        "P needs the argument 'model', and vime has nothing to pass for it",
        "takes `settings` or nothing",
        attr="P",
    ),
    "settings_that_are_not_declared": Wrong(
        "class P:\n    def __init__(self, settings): ...\n    @hookimpl\n    def custom_rm(self, sample): ...",
        "the constructor of P takes `settings`, but the class declares none",
        "add an inner `class Settings(Settings)`",
        attr="P",
    ),
    "settings_of_another_kind": Wrong(
        "class P:\n    class Settings:\n        x = 1\n    @hookimpl\n    def custom_rm(self, sample): ...",
        "P.Settings is not a subclass of vime.api.Settings",
        "derive the inner class from it",
        attr="P",
    ),
    "required_setting": Wrong(
        "class P:\n    class Settings(Settings):\n        url: str\n    @hookimpl\n    def custom_rm(self, sample): ...",
        "the setting 'url' is required",
        "settings: url",
        attr="P",
    ),
}


@pytest.mark.parametrize("name", ZOO)
def test_a_wrong_plugin_is_refused_and_leaves_no_trace(install, name):
    wrong = ZOO[name]
    target = "zoo_wrong" + (f":{wrong.attr}" if wrong.attr else "")
    install("vime-wrong", version="0.3", plugins={"wrong": target}, modules={"zoo_wrong.py": HEAD + wrong.source})
    manager = PluginManager()
    with pytest.raises(PluginError) as caught:
        manager.enable(discover().find("wrong"))
    assert caught.value.message.startswith("plugin 'wrong' (vime-wrong 0.3): ")
    assert wrong.message in caught.value.message
    assert wrong.hint in (caught.value.hint or "")
    assert "\n" not in caught.value.message
    assert manager.plugins == () and manager.get("wrong") is None
    assert all(manager.implementations(hook) == [] for hook in ("custom_rm", "shape_reward", "dynamic_sampling_filter"))
    assert not manager._pluggy.get_plugins()


SETTINGS = (
    "class P:\n    class Settings(Settings):\n        rate: float = 1.0\n    @hookimpl\n    def custom_rm(self, sample): return 1.0\n"
)
OTHER = "@hookimpl\ndef shape_reward(sample): return 1.0\n"


@dataclasses.dataclass(frozen=True)
class Refused:
    """A plugin that is right in itself and cannot be enabled as it is asked for."""

    message: str
    settings: dict[str, object] = dataclasses.field(default_factory=dict)
    requires: tuple[str, ...] = ("vime",)
    twice: bool = False
    attr: str = "P"
    asked: str = "wrong"


REFUSED = {
    "unknown setting": Refused("unknown setting 'rat'", settings={"rat": 2}),
    "setting of the wrong type": Refused("setting 'rate': ", settings={"rate": "fast"}),
    "settings for a plugin without": Refused("it takes no settings", settings={"rate": 1}, attr=""),
    "another vime": Refused("needs vime >=99, and this is vime", requires=("vime>=99",)),
    "two of one name": Refused("vime-other", twice=True),
    "a name that is not installed": Refused("no plugin", asked="right"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_plugin_that_cannot_be_enabled_leaves_no_trace_either(install, name):
    refused = REFUSED[name]
    target = "zoo_wrong" + (f":{refused.attr}" if refused.attr else "")
    source = HEAD + (SETTINGS if refused.attr else OTHER)
    install("vime-wrong", version="0.3", plugins={"wrong": target}, modules={"zoo_wrong.py": source}, requires=refused.requires)
    if refused.twice:
        install("vime-other", plugins={"wrong": "zoo_wrong"})
    install("vime-good", plugins={"good": "zoo_good"}, modules={"zoo_good.py": HEAD + OTHER})
    manager = PluginManager()
    manager.enable(discover().find("good"))
    with pytest.raises(PluginError) as caught:
        manager.enable(discover().find(refused.asked), refused.settings)
    assert refused.message in caught.value.message
    assert caught.value.hint and "\n" not in caught.value.message
    assert [plugin.name for plugin in manager.plugins] == ["good"]
    assert [function.plugin for function in manager.implementations("shape_reward")] == ["good"]
    assert manager.implementations("custom_rm") == [] and manager.claimed("custom_rm") is None
    assert [manager._pluggy.get_name(plugin) for plugin in manager._pluggy.get_plugins()] == ["good"]
    assert [plugin["name"] for plugin in manager.lock()["plugins"]] == ["good"]


def test_after_a_refusal_the_name_is_free(install):
    install("vime-wrong", plugins={"wrong": "zoo_wrong:P"}, modules={"zoo_wrong.py": HEAD + SETTINGS})
    manager = PluginManager()
    with pytest.raises(PluginError):
        manager.enable(discover().find("wrong"), {"rat": 2})
    loaded = manager.enable(discover().find("wrong"), {"rate": 2})
    assert loaded.settings is not None and loaded.settings.model_dump() == {"rate": 2.0}
    with pytest.raises(PluginError, match="a plugin of this name is already enabled"):
        manager.enable(discover().find("wrong"))
    assert len(manager.plugins) == len(manager.implementations("custom_rm")) == 1


FINE = {
    "module": ("@hookimpl\ndef custom_rm(args, sample): return 1.0", "", ("args", "sample")),
    "no parameters": ("@hookimpl\ndef custom_rm(): return 1.0", "", ()),
    "another order": ("@hookimpl\ndef custom_rm(sample, args): return 1.0", "", ("sample", "args")),
    "keywords": ("@hookimpl\ndef custom_rm(sample, **kwargs): return 1.0", "", ("sample",)),
    "positional-only": ("@hookimpl\ndef custom_rm(sample, /): return 1.0", "", ("sample",)),
    "specname": ("@hookimpl(specname='custom_rm')\ndef score(sample): return 1.0", "", ("sample",)),
    "wrapped": (
        WRAPPER + "@hookimpl\n@wrapper\ndef custom_rm(sample): return 1.0",
        "",
        ("sample",),
    ),
    "class": ("class P:\n    @hookimpl\n    def custom_rm(self, sample): return 1.0", "P", ("sample",)),
    "static method": ("class P:\n    @staticmethod\n    @hookimpl\n    def custom_rm(sample): return 1.0", "P", ("sample",)),
    "class method": ("class P:\n    @hookimpl\n    @classmethod\n    def custom_rm(cls, sample): return 1.0", "P", ("sample",)),
    "inherited": ("class B:\n    @hookimpl\n    def custom_rm(self, sample): return 1.0\nclass P(B): ...", "P", ("sample",)),
    "nested class": ("class N:\n    class P:\n        @hookimpl\n        def custom_rm(self, sample): return 1.0", "N.P", ("sample",)),
    "property that raises": (
        "class P:\n    @property\n    def buffer_filter(self): 1 / 0\n    @hookimpl\n    def custom_rm(self, sample): return 1.0",
        "P",
        ("sample",),
    ),
    "name of a hook that is no function": ("shape_reward = 3\n@hookimpl\ndef custom_rm(sample): return 1.0", "", ("sample",)),
    "function of another package": (
        "from contextlib import closing as shape_reward\n@hookimpl\ndef custom_rm(sample): return 1.0",
        "",
        ("sample",),
    ),
}


@pytest.mark.parametrize("name", FINE)
def test_a_plugin_that_is_right_in_its_own_way_is_accepted(install, name):
    source, attr, params = FINE[name]
    target = "zoo_fine" + (f":{attr}" if attr else "")
    install("vime-fine", plugins={"fine": target}, modules={"zoo_fine.py": HEAD + source})
    manager = PluginManager()
    loaded = manager.enable(discover().find("fine"))
    (function,) = manager.implementations("custom_rm")
    assert function.params == params
    assert function.call(args=None, sample=None) == 1.0
    assert list(loaded.hooks) == ["custom_rm"]


def test_keyboard_interrupt_is_not_a_fault_of_the_plugin(install):
    install("vime-stop", plugins={"stop": "zoo_stop"}, modules={"zoo_stop.py": "raise KeyboardInterrupt"})
    with pytest.raises(KeyboardInterrupt):
        PluginManager().enable(discover().find("stop"))


def test_the_cause_is_chained(install):
    install("vime-stop", plugins={"stop": "zoo_stop"}, modules={"zoo_stop.py": "1 / 0"})
    with pytest.raises(PluginError) as caught:
        PluginManager().enable(discover().find("stop"))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_hint_of_ours_survives_the_import(install):
    source = "from vime.errors import ConfigError\nraise ConfigError('no model', hint='pip install it')"
    install("vime-stop", plugins={"stop": "zoo_stop"}, modules={"zoo_stop.py": source})
    with pytest.raises(PluginError, match="no model") as caught:
        PluginManager().enable(discover().find("stop"))
    assert caught.value.hint == "pip install it"


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
