"""What this process may use of the host's CPUs, and how they are built, from sysfs, procfs and cgroups.

Whatever the system does not say, or says in a form that means nothing (-1, N/A, a missing file), is None: the
caller has to do without it. The roots of both file systems are parameters, so that recorded machines can be
read too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

SYS = "/sys"
PROC = "/proc"

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True)
class Cache:
    """One cache as one core sees it.

    Attributes:
        level: 1 is nearest to the core.
        kind: "Data", "Instruction" or "Unified".
        nbytes: its size in bytes; None if unknown.
        cores: the cores that share it, ascending.
    """

    level: int
    kind: str
    nbytes: int | None
    cores: tuple[int, ...]


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def parse_list(text: str | None) -> tuple[int, ...]:
    """The numbers in a list as the kernel writes it, such as "0-3,8"; empty if it is not one."""
    numbers: set[int] = set()
    for part in (text or "").split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        if not match:
            return ()
        numbers.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return tuple(sorted(numbers))


def allowed_cores() -> tuple[int, ...]:
    """The cores that this process may run on, ascending."""
    return tuple(sorted(os.sched_getaffinity(0)))


def _ratio(quota: str, period: str) -> float | None:
    try:
        allowed, of = float(quota), float(period)
    except ValueError:  # "max"
        return None
    return allowed / of if allowed > 0 and of > 0 else None


def _quota_in(group: Path) -> float | None:
    """The quota that one control group sets by itself, in version 2 or 1 of cgroups."""
    words = (_read(group / "cpu.max") or "").split()
    if len(words) == 2:
        return _ratio(*words)
    quota, period = _read(group / "cpu.cfs_quota_us"), _read(group / "cpu.cfs_period_us")
    return _ratio(quota, period) if quota and period else None


def cpu_quota(proc: str = PROC, sys: str = SYS) -> float | None:
    """How many cores' worth of time the control groups of this process allow it; None if unlimited.

    Every group on the way to the root limits what is below it, so the smallest quota counts.
    """
    mount = Path(sys, "fs/cgroup")
    quotas = []
    for line in (_read(Path(proc, "self/cgroup")) or "").splitlines():
        hierarchy, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if "cpu" not in controllers.split(",") and (hierarchy, controllers) != ("0", ""):
            continue
        mounts = (mount / controllers, mount / "cpu") if controllers else (mount, mount / "unified")
        # In a container the path may be the host's, of which only the container's own group is mounted, at
        # the root; or it may lead out of what is mounted ("/../..").
        group = PurePosixPath(path.lstrip("/"))
        groups = [PurePosixPath()] if ".." in group.parts else [group, *group.parents]
        quotas += [_quota_in(base / group) for base in mounts for group in groups]
    return min((quota for quota in quotas if quota is not None), default=None)


def usable_cores(proc: str = PROC, sys: str = SYS) -> float:
    """How many cores' worth of time this process can get at best, by affinity and quota."""
    cores = len(allowed_cores())
    quota = cpu_quota(proc, sys)
    return float(cores) if quota is None else min(float(cores), quota)


def caches(core: int, sys: str = SYS) -> tuple[Cache, ...]:
    """The caches of a core, nearest first; empty if the system does not describe them."""
    found = []
    for index in Path(sys, f"devices/system/cpu/cpu{core}/cache").glob("index*"):
        level = _read(index / "level") or ""
        if not level.isdigit():
            continue
        size = re.fullmatch(r"(\d+)([KMG]?)", _read(index / "size") or "")
        sharers = parse_list(_read(index / "shared_cpu_list")) or (core,)
        nbytes = int(size[1]) * _UNITS[size[2]] if size else None
        found.append(Cache(int(level), _read(index / "type") or "Unified", nbytes or None, sharers))
    return tuple(sorted(found, key=lambda cache: (cache.level, cache.kind)))


def data_cache(core: int, level: int, sys: str = SYS) -> Cache | None:
    """The cache of that level that holds a core's data; None if unknown or absent."""
    return next(
        (cache for cache in caches(core, sys) if cache.level == level and cache.kind != "Instruction"), None
    )


def numa_node(core: int, sys: str = SYS) -> int | None:
    """The NUMA node of a core; None if unknown."""
    for entry in Path(sys, f"devices/system/cpu/cpu{core}").glob("node*"):
        number = entry.name.removeprefix("node")
        if number.isdigit():
            return int(number)
    return None


def model_name(proc: str = PROC) -> str | None:
    """The CPU's name as its maker writes it, or what identifies it without one (arm64); None if unknown."""
    fields: dict[str, str] = {}
    for line in (_read(Path(proc, "cpuinfo")) or "").splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    if fields.get("model name"):
        return fields["model name"]
    parts = [
        f"{key} {fields[key]}" for key in ("CPU implementer", "CPU part", "CPU variant") if key in fields
    ]
    return ", ".join(parts) or None


def near_first(cores: Collection[int], sys: str = SYS) -> tuple[int, ...]:
    """The cores ordered so that neighbours share as much as they can: NUMA node, L3, L2 and L1 cache."""

    def place(core: int) -> tuple[int, ...]:
        node = numa_node(core, sys)
        shared = [data_cache(core, level, sys) for level in (3, 2, 1)]
        return (-1 if node is None else node, *(cache.cores[0] if cache else -1 for cache in shared), core)

    return tuple(sorted(cores, key=place))
