"""What a name, a path, a class and a function stand for, and which hook a function is for."""

from __future__ import annotations

import math

import pytest

from vime.api import hookimpl
from vime.errors import ConfigError, PluginError
from vime.testing.subject import find_subject

NUM_GPUS = 0

FUNCTIONS = """
from vime.api import hookimpl

def custom_rm(args, sample):
    return 1.0

@hookimpl(specname="custom_rm")
def my_reward(sample):
    return 1.0

def score(args, sample, **kwargs):
    return 1.0

def default(args, sample, threshold=0.5):
    return 1.0

def choose(args, rollout_id, buffer, num_samples):
    return buffer[:num_samples]

def odd(a, b, c, d, e, f, g):
    return None

class Plugin:
    @hookimpl
    def custom_rm(self, sample):
        return 1.0

class Deep(Plugin):
    pass
"""


class Plugin:
    """A plugin."""

    @hookimpl
    def custom_rm(self, sample):
        return 1.0


def shape(args, samples):
    """A function of this module."""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "functions.py"
    path.write_text(FUNCTIONS)
    return path


def test_an_installed_name_comes_before_a_path(install) -> None:
    module = install("dotted.name", "from vime.api import hookimpl\n@hookimpl\ndef custom_rm(sample):\n    return 1.0\n")
    subject = find_subject("dotted.name")
    assert subject.kind == "package" and subject.entry is not None and subject.entry.target == module
    assert subject.hooks() == ["custom_rm"]


def test_a_name_that_nothing_answers_to_is_refused() -> None:
    with pytest.raises(PluginError, match="there is no plugin 'no-such-plugin'"):
        find_subject("no-such-plugin")


@pytest.mark.parametrize(("name", "hook"), [("custom_rm", "custom_rm"), ("my_reward", "custom_rm")])
def test_a_function_says_its_hook_by_name_or_marker(file, name, hook) -> None:
    subject = find_subject(f"{file}:{name}")
    assert (subject.kind, subject.path_hook, subject.hooks()) == ("path", hook, [hook])


def test_hook_goes_over_the_name(file) -> None:
    assert find_subject(f"{file}:custom_rm", hook="rollout_sample_hook").hooks() == ["rollout_sample_hook"]


def test_a_function_without_a_hook_gets_those_that_its_arguments_fit(file) -> None:
    with pytest.raises(PluginError, match="which hook is this function for") as caught:
        find_subject(f"{file}:choose")
    assert str(caught.value.hint).startswith("its arguments fit --hook buffer_filter | ")
    with pytest.raises(PluginError) as caught:
        find_subject(f"{file}:score")
    assert "custom_rm | " in str(caught.value.hint) and "buffer_filter" not in str(caught.value.hint)
    with pytest.raises(PluginError) as caught:
        find_subject(f"{file}:default")
    assert {"custom_rm", "generate_rollout"} <= set(str(caught.value.hint).removeprefix("its arguments fit --hook ").split(" | "))
    with pytest.raises(PluginError) as caught:
        find_subject(f"{file}:odd")
    assert str(caught.value.hint).startswith("none is called with its arguments; there are --hook make_data_source | ")


@pytest.mark.parametrize(
    ("hook", "hint"),
    [("custom_rn", "did you mean --hook custom_rm?"), ("shape_reward", "--hook takes: make_data_source, generate_rollout")],
)
def test_a_hook_without_a_path_flag_is_refused(file, hook, hint) -> None:
    with pytest.raises(PluginError, match=hook) as caught:
        find_subject(f"{file}:custom_rm", hook=hook)
    assert str(caught.value.hint).startswith(hint)


@pytest.mark.parametrize("name", ["Plugin", "Deep"])
def test_a_path_to_a_plugin_class_is_that_plugin(file, name) -> None:
    subject = find_subject(f"{file}:{name}", hook="custom_rm")
    assert (subject.kind, subject.hooks()) == ("object", ["custom_rm"])


@pytest.mark.parametrize("path", ["./gone.py:f", "no.such.module.f", "math:no_such_function"])
def test_a_path_to_nothing_is_refused(path) -> None:
    with pytest.raises(PluginError, match=r"there is no|has no"):
        find_subject(path)


def test_a_module_that_raises_is_a_subject_that_cannot_be_loaded(tmp_path) -> None:
    (tmp_path / "raises.py").write_text("def custom_rm(args, sample):\n    return 1.0\n1 / 0\n")
    subject = find_subject(f"{tmp_path}/raises.py:custom_rm")
    assert subject.path_hook == "custom_rm"
    with pytest.raises(PluginError, match="raised ZeroDivisionError: division by zero"):
        subject.load()


def test_classes_and_functions_can_be_handed_over() -> None:
    assert find_subject(Plugin).hooks() == ["custom_rm"]
    subject = find_subject(shape, hook="custom_rm")
    assert (subject.kind, subject.function("custom_rm").function) == ("function", shape)


@pytest.mark.parametrize(("target", "message"), [(lambda args, sample: 1.0, "made inside another"), (math.pi, "neither a plugin")])
def test_what_no_flag_can_name_is_refused(target, message) -> None:
    with pytest.raises(PluginError, match=message):
        find_subject(target, hook="custom_rm")


def test_settings_of_a_function_are_refused(file) -> None:
    with pytest.raises(ConfigError, match="a function has no settings, and limit was set"):
        find_subject(f"{file}:custom_rm", settings={"limit": 3})


@pytest.mark.parametrize(
    ("args", "message"),
    [({"reward_kee": "a"}, "no configuration field 'reward_kee'"), ({"rollout_batch_size": 0}, "rollout_batch_size: Input should be")],
)
def test_args_are_configuration_fields(args, message) -> None:
    with pytest.raises(ConfigError, match=message):
        find_subject(Plugin, args=args)


def test_settings_and_args_reach_the_plugin(install) -> None:
    install(
        "settled",
        """
        from vime.api import Settings, hookimpl
        class Plugin:
            class Settings(Settings):
                limit: int = 5
                '''A limit.'''
            @hookimpl
            def custom_rm(self, args, sample):
                return {args.reward_key: self.settings.limit}
        """,
        entry="{module}:Plugin",
    )
    subject = find_subject("settled", settings={"limit": 7}, args={"reward_key": "score"})
    config = subject.config()
    assert subject.function("custom_rm").call(args=config, sample=None, samples=None) == {"score": 7}


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
