"""What a node answers about its plugins and libraries, and how that is compared. Whole clusters are in tests/ray."""

import copy
import pickle

import pytest

from vime.config.run_config import RunConfig
from vime.errors import ConfigError, PluginError
from vime.plugins.discovery import FIRST_PARTY
from vime.plugins.manager import PluginManager
from vime.runtime.ray import nodes

NUM_GPUS = 0

PLUGIN = "nonzero-std"


@pytest.fixture(scope="module")
def answer():
    """A node's answer and the driver's lock, where both are this process."""
    config = RunConfig(plugin=[PLUGIN])
    look = nodes._looker()
    here = look(nodes.COMPARED, "", b"")
    assert here["lock"] is None and here["error"] is None, "a node with another vime does not read the configuration"
    return look(nodes.COMPARED, here["versions"]["vime"], pickle.dumps(config)), PluginManager.load(config).lock()


def changed(answer, **values):
    return {**copy.deepcopy(answer), **values}


def test_the_same_everywhere_passes(answer):
    there, lock = answer
    assert there["plugins"][PLUGIN][0] == FIRST_PARTY[PLUGIN] and there["versions"]["vime"] is not None
    nodes.compare("n1", lock, there["versions"], there)


def test_libraries_are_compared_first(answer):
    there, lock = answer
    other = changed(there, versions={**there["versions"], "torch": "1.0"}, plugins={}, lock=None)
    with pytest.raises(ConfigError, match=r"node n1 has torch 1\.0") as caught:
        nodes.compare("n1", lock, {**there["versions"], "torch": "2.0"}, other)
    assert caught.value.hint == f"on node n1: uv pip install --python {there['python']} 'torch==2.0'"
    with pytest.raises(ConfigError, match=r"and the driver no torch") as caught:
        nodes.compare("n1", lock, {**there["versions"], "torch": None}, other)
    assert "uninstall torch" in str(caught.value.hint)


def test_a_plugin_that_is_missing_or_another_is_named(answer):
    there, lock = answer
    version = lock["plugins"][0]["version"]
    with pytest.raises(PluginError, match=f"node n1 has no plugin '{PLUGIN}', and the driver {FIRST_PARTY[PLUGIN]} {version}"):
        nodes.compare("n1", lock, there["versions"], changed(there, plugins={}))
    with pytest.raises(PluginError, match=f"node n1 has plugin '{PLUGIN}' of other 3.0"):
        nodes.compare("n1", lock, there["versions"], changed(there, plugins={PLUGIN: ["other", "3.0"]}))


def test_what_a_node_could_not_load_and_what_it_loads_otherwise(answer):
    there, lock = answer
    with pytest.raises(PluginError, match="node n1: it does not import") as caught:
        nodes.compare("n1", lock, there["versions"], changed(there, error=["it does not import", "do this"], lock=None))
    assert caught.value.hint == "do this"
    with_setting = {**lock, "plugins": [{**lock["plugins"][0], "settings": {"bonus": 1}}]}
    with pytest.raises(PluginError, match=rf"loads plugin '{PLUGIN}' with bonus = None, and the driver with 1"):
        nodes.compare("n1", with_setting, there["versions"], there)
    with pytest.raises(PluginError, match=r"node n1 does not have the driver's plugins: its path functions are \{\}, those of the driver"):
        nodes.compare("n1", {**lock, "paths": {"custom_rm_path": ["m.f"]}}, there["versions"], there)


def test_an_error_in_a_plugin_comes_back_as_words(answer):
    there, _ = answer
    broken = nodes._looker()(nodes.COMPARED, there["versions"]["vime"], pickle.dumps(RunConfig(plugin=["no-such-plugin"])))
    assert "no-such-plugin" in broken["error"][0] and broken["lock"] is None


def test_nodes_without_gpus_are_asked_only_where_none_has_any():
    head, worker, idle = (
        {"NodeName": name, "Resources": has} for name, has in (("head", {"CPU": 4.0}), ("gpu", {"GPU": 1.0}), ("idle", {}))
    )
    assert nodes._with_actors([head, worker, idle]) == [worker]
    assert nodes._with_actors([head, idle]) == [head]


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
