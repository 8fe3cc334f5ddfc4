"""Mounts, name spaces, CPU limits and other jobs: nothing is left behind and no rank is starved."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ranks import Pool, new_key, rank_environment

HERE = Path(__file__).parent
RANKS = [sys.executable, str(HERE / "ranks.py")]


def job(
    world: int, name: str, *args: Any, before: list[str] | None = None, key: str | None = None
) -> list[Any]:
    """Run `test_processes:name` as a job of its own, behind the command `before`."""
    command = [*(before or []), *RANKS, str(world), f"test_processes:{name}", json.dumps(args)]
    environment = {**os.environ, **({"TEST_JOB_KEY": key} if key else {})}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def permitted(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True).returncode == 0
    except OSError:
        return False


def shared_memory_files() -> set[str]:
    return set(os.listdir("/dev/shm"))


def work(comm: Any, count: int) -> list[str]:
    """Every collective once; what is in /dev/shm meanwhile."""
    world = comm.world_size
    x = comm.all_reduce(np.full(count, comm.rank + 1.0, np.float32))
    assert (x == world * (world + 1) // 2).all()
    comm.all_gather(x)
    comm.reduce_scatter(np.ones((world, count), np.float32))
    comm.broadcast(x, world - 1)
    comm.barrier()
    return sorted(shared_memory_files())


def test_nothing_in_dev_shm() -> None:
    before = shared_memory_files()
    with Pool(3) as pool:
        for during in pool.run(work, 300_000):
            assert set(during) <= before
    assert shared_memory_files() <= before


def test_nothing_in_dev_shm_after_a_kill() -> None:
    before = shared_memory_files()
    with Pool(3) as pool:
        pool.run(work, 300_000)
        for rank in range(3):
            pool.signal(rank, signal.SIGKILL)
        pool.collect(10)
    assert shared_memory_files() <= before


def test_no_files_or_sockets_left_in_the_file_system() -> None:
    folders = [
        Path(folder) for folder in ("/tmp", "/run", "/var/run", os.environ.get("XDG_RUNTIME_DIR", "/tmp"))
    ]

    def listing() -> set[str]:
        return {
            str(path)
            for folder in folders
            if folder.is_dir()
            for path in folder.iterdir()
            if "collectives" in path.name
        }

    before = listing()
    with Pool(2) as pool:
        pool.run(work, 1000)
        during = listing()
    assert during <= before and listing() <= before


@pytest.mark.parametrize("size", ["64m", "1m"])
def test_small_dev_shm(size: str) -> None:
    if os.geteuid() != 0 or not permitted("unshare", "-m", "true"):
        pytest.skip("needs to make a mount namespace")
    before = ["unshare", "-m", "sh", "-c", f'mount -t tmpfs -o size={size} tmpfs /dev/shm && exec "$@"', "sh"]
    assert job(8, "work", 2_000_000, before=before) == [[]] * 8


def test_no_dev_shm_at_all() -> None:
    if os.geteuid() != 0 or not permitted("unshare", "-m", "true"):
        pytest.skip("needs to make a mount namespace")
    before = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs -o ro,size=4k tmpfs /dev/shm && exec "$@"', "sh"]
    assert job(2, "work", 1_000_000, before=before) == [[]] * 2


@contextmanager
def cpu_quota(percent: int) -> Iterator[list[str]]:
    """A command prefix that runs under a CPU quota, in a control group of either version."""
    name = f"collectives-test-{os.getpid()}"
    period = 100_000
    controllers = Path("/sys/fs/cgroup/cgroup.controllers")
    two = controllers.exists()
    if two and "cpu" not in controllers.read_text().split():
        pytest.skip("the cpu controller is not available in this control group")
    group = Path("/sys/fs/cgroup", name) if two else Path("/sys/fs/cgroup/cpu", name)
    try:
        group.mkdir()
        if two:
            (group / "cpu.max").write_text(f"{period * percent // 100} {period}")
        else:
            (group / "cpu.cfs_period_us").write_text(str(period))
            (group / "cpu.cfs_quota_us").write_text(str(period * percent // 100))
    except OSError as error:
        if group.is_dir():
            group.rmdir()
        pytest.skip(f"cannot make a control group with a CPU quota: {error}")
    try:
        yield ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"]
    finally:
        end = time.monotonic() + 10
        while time.monotonic() < end:
            try:
                group.rmdir()
                break
            except OSError:
                time.sleep(0.1)


def small_calls(comm: Any, calls: int, count: int) -> float:
    """Seconds for each all_reduce."""
    comm.all_reduce(np.zeros(count, np.float32))
    start = time.monotonic()
    for i in range(calls):
        assert (comm.all_reduce(np.full(count, float(i), np.float32)) == comm.world_size * i).all()
    return (time.monotonic() - start) / calls


def test_cpu_quota() -> None:
    """Half a CPU for four ranks: waiting must not use up the quota that the working rank needs."""
    with cpu_quota(50) as before:
        assert max(job(4, "small_calls", 200, 1000, before=before)) < 0.05


def test_more_ranks_than_cores() -> None:
    with Pool(16) as pool:
        assert max(pool.run(small_calls, 50, 1000)) < 0.2


def test_all_ranks_on_one_core(pools: Any) -> None:
    with Pool(4) as pool:
        for took, before, after in pool.run(small_calls_on_one_core, 100):
            assert took < 0.05
            assert before == after, "a call changed the affinity"
            assert len(after) == 1


def small_calls_on_one_core(comm: Any, calls: int) -> tuple[float, list[int], list[int]]:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    before = sorted(os.sched_getaffinity(0))
    took = small_calls(comm, calls, 256)
    comm.all_reduce(np.ones(1 << 18, np.float32))
    return took, before, sorted(os.sched_getaffinity(0))


def test_affinity_is_left_alone(pools: Any) -> None:
    for before, after in pools(2).run(affinity):
        assert before == after


def affinity(comm: Any) -> tuple[list[int], list[int]]:
    before = sorted(os.sched_getaffinity(0))
    comm.all_reduce(np.ones(1 << 20, np.float32))
    return before, sorted(os.sched_getaffinity(0))


def sum_of_ids(comm: Any, number: int, calls: int) -> bool:
    x = np.zeros(100, np.float64)
    for _ in range(calls):
        x[:] = number
        comm.all_reduce(x)
        if not (x == number * comm.world_size).all():
            return False
    return True


def test_twenty_jobs_at_a_time_never_mix() -> None:
    wrong: list[Any] = []

    def one(number: int) -> None:
        try:
            with Pool(2) as pool:
                if pool.run(sum_of_ids, number, 50, limit=60) != [True, True]:
                    wrong.append(number)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_jobs_one_after_another_with_one_key() -> None:
    """A key may be used again as soon as the job before has ended, however it ended."""
    key = new_key()
    for i in range(6):
        with Pool(2, key=key) as pool:
            assert pool.run(sum_of_ids, i, 5) == [True, True]
            if i % 2:
                pool.signal(i // 2 % 2, signal.SIGKILL)


def test_network_namespaces_with_one_key_stay_apart() -> None:
    if os.geteuid() != 0 or not permitted("unshare", "-n", "true"):
        pytest.skip("needs to make a network namespace")
    key = new_key()
    results: dict[int, Any] = {}

    def one(number: int) -> None:
        results[number] = job(2, "sum_of_ids", number, 300, before=["unshare", "-n"], key=key)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {number: [True, True] for number in range(3)}


def test_ranks_in_two_network_namespaces_do_not_meet() -> None:
    """Two "hosts" with one key: an error in time that says who is missing, and no shared memory."""
    if os.geteuid() != 0 or not permitted("unshare", "-n", "true"):
        pytest.skip("needs to make a network namespace")
    key = new_key()
    program = "import collectives; collectives.Communicator(timeout=2)"
    ranks = [
        subprocess.Popen(
            ["unshare", "-n", sys.executable, "-c", program],
            env={**os.environ, **rank_environment(rank, 2, key)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for rank, process in enumerate(ranks):
        _, text = process.communicate(timeout=30)
        assert process.returncode != 0
        last = text.strip().splitlines()[-1]
        assert "CollectiveTimeoutError" in last and str(1 - rank) in last, text
