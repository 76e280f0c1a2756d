"""Import paths of the core whose functions live in a plugin package."""

import importlib
import sys
from pathlib import Path

import pytest

from vime.config.run_config import RunConfig
from vime.errors import PluginError
from vime.plugins.manager import PluginManager
from vime.rollout.plugin_path import plugin_attribute

NUM_GPUS = 0

PATHS = [
    ("vime.rollout.filter_hub.dynamic_sampling_filters", "check_reward_nonzero_std", "vime_filters_basic", "vime-filters-basic"),
    (
        "vime.rollout.filter_hub.dynamic_sampling_filters",
        "check_reward_nonzero_std_with_fallback",
        "vime_filters_basic",
        "vime-filters-basic",
    ),
    ("vime.rollout.sft_rollout", "generate_rollout", "vime_rollout_sft", "vime-rollout-sft"),
]


@pytest.mark.parametrize(("module", "name", "package", "distribution"), PATHS)
def test_they_are_the_plugins_functions(module, name, package, distribution):
    function = getattr(importlib.import_module(module), name)
    assert function.__module__.startswith(package) and function.__name__ == name
    assert name in dir(importlib.import_module(module))


@pytest.fixture
def uninstall(monkeypatch):
    """Hide a package from the import system, as if it were not installed."""

    def hide(package):
        for loaded in [loaded for loaded in sys.modules if loaded.partition(".")[0] == package]:
            monkeypatch.delitem(sys.modules, loaded)
        monkeypatch.setattr(sys, "path", [entry for entry in sys.path if not (Path(entry) / package).exists()])

    return hide


@pytest.mark.parametrize(("module", "name", "package", "distribution"), PATHS)
def test_without_the_package_the_error_is_its_pip_line(module, name, package, distribution, uninstall):
    uninstall(package)
    with pytest.raises(PluginError, match=f"{name} comes with {distribution}, which is not installed") as caught:
        getattr(importlib.import_module(module), name)
    assert caught.value.hint == f"pip install {distribution}"


def test_a_flag_that_names_it_is_refused_with_the_pip_line(uninstall):
    uninstall("vime_rollout_sft")
    with pytest.raises(PluginError, match="vime-rollout-sft, which is not installed") as caught:
        PluginManager.load(RunConfig(rollout_function_path="vime.rollout.sft_rollout.generate_rollout"))
    assert caught.value.hint == "pip install vime-rollout-sft"


def test_a_module_that_the_plugin_misses_is_not_called_missing_itself():
    with pytest.raises(ModuleNotFoundError, match="nonexistent_part"):
        plugin_attribute("x", "y", "vime_filters_basic.nonexistent_part", "vime-filters-basic")


def test_other_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="it has check_reward_nonzero_std"):
        importlib.import_module("vime.rollout.filter_hub.dynamic_sampling_filters").nonsense  # noqa: B018


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
