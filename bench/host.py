"""Facts about the host, the ranks and the versions, for the header and the JSON."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from collectives.bench.peers import Contender
from collectives.communicator import Communicator
from collectives.environment import Launch


def usable_cores() -> int:
    """Cores that the ranks of this host may use together.

    A launcher may have bound this process to one core, so its parent's affinity counts too; a cgroup's CPU
    quota is the last word.
    """
    cores = set(os.sched_getaffinity(0))
    try:
        cores |= os.sched_getaffinity(os.getppid())
    except OSError:
        pass  # the parent is in another pid namespace
    return max(1, min(len(cores), _quota()))


def _quota() -> int:
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, round(int(quota) / int(period)))
    except (OSError, ValueError):
        return os.cpu_count() or 1


def cpu_model() -> str:
    """The processor's name as the kernel tells it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


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


def environment(launch: Launch, contenders: Sequence[Contender]) -> dict[str, Any]:
    """Host, processor, cores, world and versions: what a reader needs to place the numbers. No variables."""
    versions = {contender.name: contender.version for contender in contenders}
    versions |= {"numpy": np.__version__, "python": platform.python_version()}
    for package, peer in (("torch", "gloo"), ("mpi4py", "mpi")):
        if peer not in versions:  # a peer tells these itself
            try:
                versions[package] = importlib.metadata.version(package)
            except importlib.metadata.PackageNotFoundError:
                pass
    return {
        "host": host_name(),
        "cpu": cpu_model(),
        "cores": usable_cores(),
        "load_average": os.getloadavg()[0],
        "world_size": launch.world_size,
        "launcher": launch.launcher,
        "versions": versions,
    }
