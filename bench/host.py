"""Facts about the host, the ranks and the versions, for the header and the JSON."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import socket
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from collectives.communicator import Communicator
from collectives.environment import Launch
from collectives.topology import cpu


def usable_cores() -> float:
    """How many cores' worth of time the ranks of this host may use together.

    A launcher may have bound this process to one core, so its parent's affinity counts too; the control
    groups' quota is the last word.
    """
    cores = set(cpu.allowed_cores())
    try:
        cores |= os.sched_getaffinity(os.getppid())
    except OSError:
        pass  # the parent is in another pid namespace
    quota = cpu.cpu_quota()
    return float(len(cores)) if quota is None else min(float(len(cores)), quota)


def load_average() -> float:
    """The host's load average over the last minute."""
    return os.getloadavg()[0]


def load_warning(loads: Iterable[float], environment: dict[str, Any]) -> str | None:
    """What to say about a run that met these load averages; None if the cores were enough.

    The ranks themselves make a load of their number, around which the average also swings a little.
    """
    worst, cores, ranks = max(loads, default=0.0), environment["cores"], environment["world_size"]
    if worst <= max(cores, ranks) + 0.5:
        return None
    return (
        f"load average up to {worst:.1f} while {ranks} ranks ran on {cores:g} usable cores: other programs "
        "wanted the cores too. These times are no evidence"
    )


def host_name() -> str:
    """This host's name."""
    return socket.gethostname()


def gather_ranks(comm: Communicator) -> list[dict[str, Any]]:
    """Who the ranks are, in nccl-tests' words, as far as they apply to a process on a CPU."""
    width = 256
    mine = np.zeros(width, np.uint8)
    text = f"{os.getpid()} {host_name()}".encode()[:width]
    mine[: len(text)] = np.frombuffer(text, np.uint8)
    everyone = np.empty(comm.world_size * width, np.uint8)
    comm.all_gather(mine, everyone)
    ranks = []
    for rank, row in enumerate(everyone.reshape(comm.world_size, width)):
        pid, host = row.tobytes().rstrip(b"\0").decode().split(" ", 1)
        ranks.append({"rank": rank, "group": 0, "pid": int(pid), "hostname": host})
    return ranks


def environment(launch: Launch, versions: Mapping[str, str]) -> dict[str, Any]:
    """Host, processor, cores, world and versions: what a reader needs to place the numbers. No variables.

    `versions` are those of what is measured; NumPy's and Python's are added.
    """
    versions = dict(versions) | {"numpy": np.__version__, "python": platform.python_version()}
    for package, peer in (("torch", "gloo"), ("mpi4py", "mpi")):
        if peer not in versions and package not in versions:  # a peer tells these itself
            try:
                versions[package] = importlib.metadata.version(package)
            except importlib.metadata.PackageNotFoundError:
                pass
    return {
        "host": host_name(),
        "cpu": cpu.model_name() or platform.processor() or platform.machine(),
        "cores": usable_cores(),
        "load_average": load_average(),
        "world_size": launch.world_size,
        "launcher": launch.launcher,
        "versions": versions,
    }
