"""The machines that `--runtime ray` would run on: this one, or those of the cluster at --ray-address, which is asked and not started."""

from __future__ import annotations

import json
import logging
import os
import platform
import subprocess
import sys
from dataclasses import asdict
from typing import Any

from vime.doctor.machine import Machine
from vime.errors import ConfigError
from vime.runtime.ray.plan import Node, node_of

SECONDS = 60
"""For a cluster to answer."""


def this_machine(machine: Machine) -> Node:
    """What Ray would find here."""
    name = machine.gpus[0].name if machine.gpus else None
    cpus = float(max(1, int(machine.cpus)))  # Ray counts whole ones
    return Node(platform.node() or "this machine", cpus, len(machine.gpus), machine.memory_gib, name)


def cluster_nodes(address: str) -> list[Node]:
    """The living nodes of a cluster, asked by a process of its own, so that nothing of Ray stays in this one.

    Raises ConfigError where there is no cluster at the address.
    """
    command = [sys.executable, "-P", "-m", "vime.doctor.cluster", address]
    hint = "start one with ray start --head, or leave --ray-address out to start Ray here for the run"
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        raise ConfigError(f"--ray-address {address}: no cluster answered in {SECONDS} s", hint=hint) from None
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    answer: dict[str, Any] = json.loads(lines[-1]) if lines else {"error": (done.stderr.strip().splitlines() or ["no answer"])[-1]}
    if "error" in answer:
        raise ConfigError(f"--ray-address {address}: no cluster answers there: {answer['error']}", hint=hint)
    return [Node(**node) for node in answer["nodes"]]


def main(address: str) -> None:
    """The child's side: a line of JSON. It asks the head and joins nothing, so that this machine need not be a node of the cluster."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    logging.getLogger("ray").setLevel(logging.ERROR)
    from ray._private import services
    from ray._private.authentication.authentication_token_setup import maybe_enable_token_auth_if_token_available
    from ray._private.state import GlobalState
    from ray._raylet import GcsClientOptions  # pyright: ignore[reportAttributeAccessIssue]

    try:
        maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
        # What is given as an address stays as it is: Ray would make the outer address of this machine out of 127.0.0.1.
        head = services.get_ray_address_from_environment(address, None) if address == "auto" else address
        state = GlobalState()
        state._initialize_global_state(GcsClientOptions.create(head, None, allow_cluster_id_nil=True, fetch_cluster_id_if_nil=False))
        answer: dict[str, Any] = {"nodes": [asdict(node_of(node)) for node in state.node_table() if node["Alive"]]}
    except Exception as error:  # noqa: BLE001 - handed to the parent
        answer = {"error": (str(error).strip() or type(error).__name__).splitlines()[0]}
    sys.stdout.write("\n" + json.dumps(answer) + "\n")
    sys.stdout.flush()
    os._exit(0)  # nothing of a cluster that does not answer is waited for


if __name__ == "__main__":
    main(sys.argv[1])
