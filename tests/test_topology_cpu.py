"""Reading CPUs, caches and control groups, from recorded trees and from this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from collectives.topology import cpu
from collectives.topology.cpu import Cache


def write(root: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return str(root)


def quota(tmp_path: Path, groups: str, files: dict[str, str]) -> float | None:
    proc = write(tmp_path / "proc", {"self/cgroup": groups})
    sys_root = write(tmp_path / "sys", {f"fs/cgroup/{name}": text for name, text in files.items()})
    return cpu.cpu_quota(proc, sys_root)


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("0::/", {"cpu.max": "150000 100000"}, 1.5),
        ("0::/", {"cpu.max": "max 100000"}, None),
        ("0::/", {}, None),
        ("0::/a/b", {"a/cpu.max": "50000 100000", "a/b/cpu.max": "200000 100000"}, 0.5),
        ("0::/a/b", {"a/cpu.max": "max 100000", "a/b/cpu.max": "25000 50000"}, 0.5),
        ("0::/docker/123", {"cpu.max": "300000 100000"}, 3.0),  # the host's path, seen from inside
        ("0::/../../outside", {"cpu.max": "300000 100000", "outside/cpu.max": "1 100000"}, 3.0),
        (
            "4:cpu,cpuacct:/j",
            {"cpu,cpuacct/j/cpu.cfs_quota_us": "-1", "cpu,cpuacct/j/cpu.cfs_period_us": "9"},
            None,
        ),
        ("4:cpu,cpuacct:/j", {"cpu/j/cpu.cfs_quota_us": "70000", "cpu/j/cpu.cfs_period_us": "100000"}, 0.7),
        (
            "5:cpuset:/j\n4:cpu:/\n0::/",
            {"cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "25000"},
            2.0,
        ),
        ("5:cpuset:/", {"cpuset/cpu.max": "10 100"}, None),
        ("0::/", {"cpu.max": "N/A"}, None),
        ("0::/", {"cpu.max": "0 0"}, None),
        ("0::/x\n1:cpu:/y", {"unified/x/cpu.max": "100 100", "cpu/y/cpu.max": "400 100"}, 1.0),
        ("N/A", {"cpu.max": "100 100"}, None),
    ],
)
def test_quota(tmp_path: Path, groups: str, files: dict[str, str], expected: float | None) -> None:
    assert quota(tmp_path, groups, files) == expected


def test_quota_without_any_files(tmp_path: Path) -> None:
    assert cpu.cpu_quota(str(tmp_path), str(tmp_path)) is None


def test_usable_cores_is_the_smaller_of_affinity_and_quota(tmp_path: Path) -> None:
    cores = float(len(os.sched_getaffinity(0)))
    for text, expected in (("50000 100000", 0.5), ("99900000 100000", cores), ("max 100000", cores)):
        proc = write(tmp_path / "proc", {"self/cgroup": "0::/"})
        sys_root = write(tmp_path / "sys", {"fs/cgroup/cpu.max": text})
        assert cpu.usable_cores(proc, sys_root) == expected


def test_allowed_cores_are_those_of_the_affinity_mask() -> None:
    last = max(os.sched_getaffinity(0))
    code = (
        f"import os; os.sched_setaffinity(0, {{{last}}})\n"
        "from collectives.topology import cpu; print(cpu.allowed_cores(), cpu.usable_cores() <= 1)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"({last},) True"


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("0-3,8", (0, 1, 2, 3, 8)), ("5", (5,)), ("3,1", (1, 3)), ("", ()), (None, ()), ("-1", ()), ("N/A", ())],
)
def test_lists_of_the_kernel(text: str | None, numbers: tuple[int, ...]) -> None:
    assert cpu.parse_list(text) == numbers


def machine(root: Path) -> str:
    """Two nodes of four cores; two cores share an L3: 0 and 1, 2 and 3, but 4 and 6, 5 and 7."""
    files: dict[str, str] = {}
    for core in range(8):
        pair = core // 2 * 2 if core < 4 else 4 + core % 2
        shared = f"{pair}-{pair + 1}" if core < 4 else f"{pair},{pair + 2}"
        base = f"devices/system/cpu/cpu{core}"
        files[f"{base}/node{core // 4}/id"] = ""
        for index, level, kind, size, sharers in (
            (0, "1", "Data", "32K", str(core)),
            (1, "1", "Instruction", "64K", str(core)),
            (2, "2", "Unified", "1M", str(core)),
            (3, "3", "Unified", "32768K", shared),
        ):
            cache = f"{base}/cache/index{index}"
            files |= {
                f"{cache}/level": level,
                f"{cache}/type": kind,
                f"{cache}/size": size,
                f"{cache}/shared_cpu_list": sharers,
            }
    return write(root, files)


def test_caches(tmp_path: Path) -> None:
    root = machine(tmp_path)
    assert cpu.caches(1, root) == (
        Cache(1, "Data", 32 << 10, (1,)),
        Cache(1, "Instruction", 64 << 10, (1,)),
        Cache(2, "Unified", 1 << 20, (1,)),
        Cache(3, "Unified", 32 << 20, (0, 1)),
    )
    assert cpu.data_cache(6, 3, root) == Cache(3, "Unified", 32 << 20, (4, 6))
    assert cpu.data_cache(6, 4, root) is None
    assert cpu.caches(99, root) == ()


def test_odd_cache_files_mean_unknown(tmp_path: Path) -> None:
    base = "devices/system/cpu/cpu0/cache"
    root = write(
        tmp_path,
        {f"{base}/index0/level": "N/A", f"{base}/index1/level": "2", f"{base}/index1/size": "-1"},
    )
    assert cpu.caches(0, root) == (Cache(2, "Unified", None, (0,)),)


def test_numa_node(tmp_path: Path) -> None:
    root = machine(tmp_path)
    assert [cpu.numa_node(core, root) for core in (0, 3, 4, 7)] == [0, 0, 1, 1]
    write(tmp_path, {"devices/system/cpu/cpu9/node-1/x": ""})
    assert cpu.numa_node(9, root) is None
    assert cpu.numa_node(10, root) is None


def test_near_cores_come_together(tmp_path: Path) -> None:
    root = machine(tmp_path)
    assert cpu.near_first(range(8), root) == (0, 1, 2, 3, 4, 6, 5, 7)
    assert cpu.near_first([7, 5, 0], root) == (0, 5, 7)
    assert cpu.near_first([2, 1, 0], str(tmp_path / "nothing")) == (0, 1, 2)


def test_model_name(tmp_path: Path) -> None:
    x86 = write(
        tmp_path / "x86", {"cpuinfo": "processor : 0\nmodel name\t: Some CPU @ 2GHz\n\nprocessor : 1"}
    )
    arm = write(tmp_path / "arm", {"cpuinfo": "processor : 0\nCPU implementer : 0x41\nCPU part\t: 0xd4f"})
    assert cpu.model_name(x86) == "Some CPU @ 2GHz"
    assert cpu.model_name(arm) == "CPU implementer 0x41, CPU part 0xd4f"
    assert cpu.model_name(str(tmp_path)) is None


def test_this_machine() -> None:
    cores = cpu.allowed_cores()
    assert cores == tuple(sorted(os.sched_getaffinity(0)))
    assert 0 < cpu.usable_cores() <= len(cores)
    assert set(cpu.near_first(cores)) == set(cores)
    for cache in cpu.caches(cores[0]):
        assert cores[0] in cache.cores
