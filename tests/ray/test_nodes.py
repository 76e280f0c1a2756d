"""Nodes of a Ray cluster that do not have what the driver has: the start is refused with the node's name."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from vime.config.run_config import RunConfig
from vime.doctor.cluster import cluster_nodes
from vime.errors import ConfigError, PluginError
from vime.plugins.manager import PluginManager
from vime.runtime.ray.nodes import check_nodes

NUM_GPUS = 0

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]

SOURCE = """
from vime.api import Settings, hookimpl


class Plugin:
    class Settings(Settings):
        bonus: float = {bonus}

    def __init__(self, settings):
        self.settings = settings

    @hookimpl
    def custom_rm(self, sample):
        return self.settings.bonus
"""
LOOPBACK = "127.0.0.1"
"""Of all nodes: with any other address, 127.0.0.2 too, Ray listens on every interface. They are told apart by name."""
FIRST, SECOND = "first", "second"


def distribution(folder: Path, name: str, version: str, source: str | None = None) -> Path:
    """A folder for PYTHONPATH with an installed distribution, and with `source` its plugin `noded`."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    if source is not None:
        (info / "entry_points.txt").write_text("[vime.plugins]\nnoded = vime_noded:Plugin\n")
        (folder / "vime_noded.py").write_text(source)
    return folder


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the driver has the plugin."""
    return distribution(tmp_path_factory.mktemp("driver"), "vime-noded", "1.0", SOURCE.format(bonus=1.0))


@pytest.fixture(scope="module")
def cluster(installed: Path) -> Iterator[Any]:
    """A head node with the driver's environment, connected to."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.syspath_prepend(str(installed))
        ray = pytest.importorskip("ray")
        from ray._private import ray_constants, services
        from ray.cluster_utils import Cluster

        patch.setattr(services, "get_node_ip_address", lambda *_: LOOPBACK)
        patch.setattr(ray_constants, "RAY_ENABLE_UV_RUN_RUNTIME_ENV", False)  # workers in this environment, under `uv run` too
        head = {"num_cpus": 1, "include_dashboard": False, "node_ip_address": LOOPBACK, "node_name": FIRST}
        started = Cluster(initialize_head=True, head_node_args={**head, "env_vars": path_with(installed)})
        try:
            ray.init(address=started.address, log_to_driver=False, logging_level="error")
            yield started
        finally:
            ray.shutdown()
            started.shutdown()


def path_with(*folders: Path) -> dict[str, str]:
    """PYTHONPATH of a node: these folders before those of the driver's."""
    return {"PYTHONPATH": os.pathsep.join([*map(str, folders), *filter(None, [os.environ.get("PYTHONPATH")])])}


@contextmanager
def second_node(cluster: Any, *folders: Path, num_cpus: int = 1) -> Iterator[None]:
    node = cluster.add_node(num_cpus=num_cpus, node_ip_address=LOOPBACK, node_name=SECOND, env_vars=path_with(*folders))
    try:
        yield
    finally:
        cluster.remove_node(node)


@pytest.fixture
def check(cluster: Any) -> Callable[[], None]:
    config = RunConfig(plugin=["noded"], runtime="ray")
    manager = PluginManager.load(config)
    return lambda: check_nodes(config, manager)


def test_nodes_that_have_the_same_pass(cluster: Any, installed: Path, check: Callable[[], None]) -> None:
    with second_node(cluster, installed):
        check()


def test_a_node_without_the_plugin_is_named_with_what_to_install(cluster: Any, check: Callable[[], None]) -> None:
    with second_node(cluster), pytest.raises(PluginError) as caught:
        check()
    assert caught.value.message == f"node {SECOND} has no plugin 'noded', and the driver vime-noded 1.0"
    assert caught.value.hint is not None and "'vime-noded==1.0'" in caught.value.hint and SECOND in caught.value.hint


def test_a_node_with_another_version_of_the_plugin(cluster: Any, check: Callable[[], None], tmp_path: Path) -> None:
    with second_node(cluster, distribution(tmp_path, "vime-noded", "2.0", SOURCE.format(bonus=1.0))), pytest.raises(PluginError) as caught:
        check()
    assert caught.value.message == f"node {SECOND} has plugin 'noded' of vime-noded 2.0, and the driver vime-noded 1.0"


def test_a_node_whose_plugin_has_other_settings(cluster: Any, check: Callable[[], None], tmp_path: Path) -> None:
    other = distribution(tmp_path, "vime-noded", "1.0", SOURCE.format(bonus=2.0))
    with second_node(cluster, other), pytest.raises(PluginError) as caught:
        check()
    assert caught.value.message == f"node {SECOND} loads plugin 'noded' with bonus = 2.0, and the driver with 1.0"


def test_a_node_whose_plugin_cannot_be_loaded(cluster: Any, check: Callable[[], None], tmp_path: Path) -> None:
    broken = distribution(tmp_path, "vime-noded", "1.0", "import no_such_module\n")
    with second_node(cluster, broken), pytest.raises(PluginError, match=rf"node {SECOND}: plugin 'noded' .*no_such_module"):
        check()


def test_a_node_whose_plugin_ends_the_process(cluster: Any, check: Callable[[], None], tmp_path: Path) -> None:
    fatal = distribution(tmp_path, "vime-noded", "1.0", "import os\nos._exit(7)\n")
    with second_node(cluster, fatal), pytest.raises(PluginError, match=f"node {SECOND}: loading the plugins there ended the process"):
        check()


@pytest.mark.parametrize("library", ["torch", "vime"])
def test_a_node_with_other_libraries_is_refused_before_its_plugins_are_loaded(
    cluster: Any, check: Callable[[], None], tmp_path: Path, library: str
) -> None:
    fatal = distribution(tmp_path / "plugin", "vime-noded", "1.0", "raise ImportError\n")
    with second_node(cluster, fatal, distribution(tmp_path / library, library, "0.0.1")), pytest.raises(ConfigError) as caught:
        check()
    assert f"node {SECOND} has {library} 0.0.1 (" in caught.value.message
    assert f"'{library}==" in str(caught.value.hint) and SECOND in str(caught.value.hint)


def test_a_node_that_does_not_answer_is_named(cluster: Any, tmp_path: Path) -> None:
    config = RunConfig(plugin=["noded"], runtime="ray")
    slow = distribution(tmp_path, "vime-noded", "1.0", "import time\ntime.sleep(600)\n")
    with second_node(cluster, slow), pytest.raises(ConfigError, match=f"node {SECOND} has not loaded the plugins in 20 s"):
        check_nodes(config, PluginManager.load(config), seconds=20.0)


def test_a_node_that_gets_no_actors_needs_nothing(cluster: Any, check: Callable[[], None]) -> None:
    with second_node(cluster, num_cpus=0):
        check()


def test_vime_doctor_asks_the_cluster_what_it_has(cluster: Any) -> None:
    with second_node(cluster, num_cpus=3):
        found = {node.name: (node.cpus, node.gpus) for node in cluster_nodes(cluster.address)}
    assert found == {FIRST: (1.0, 0), SECOND: (3.0, 0)}


def test_vime_doctor_says_that_there_is_no_cluster(cluster: Any) -> None:
    with pytest.raises(ConfigError, match=r"--ray-address 127\.0\.0\.1:1: no cluster answer"):
        cluster_nodes("127.0.0.1:1")


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
