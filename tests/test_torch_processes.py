"""The processes around a group: a DataLoader's forked workers, Ctrl-C, deaths, and how much a group takes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import LAUNCHERS
from test_leaks import resources
from torch.utils.data import DataLoader, Dataset
from torch_ranks import BACKEND, Ranks, initialize, needs_backend


class Squares(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(float(index * index))


def load_data() -> tuple[float, float, int]:
    """A group is used before, between and after batches that forked workers made."""
    # A pool's rank is a daemon, which multiprocessing allows no children.
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    before = len(os.listdir("/proc/self/fd"))
    sums = []
    for epoch in range(2):
        for batch in DataLoader(Squares(), batch_size=3, num_workers=2, multiprocessing_context="fork"):
            work = dist.all_reduce(batch, async_op=True)
            work.wait()
            sums.append(batch.sum().item())
        dist.barrier()
        assert epoch < 2
    return sum(sums), sums[0], len(os.listdir("/proc/self/fd")) - before


def test_data_loader_with_forked_workers(ranks: Ranks) -> None:
    squares = sum(i * i for i in range(12))
    for value, first, _ in ranks.values(load_data):
        assert value == 2 * ranks.world * squares and first == ranks.world * 5


def fork_and_leave() -> list[int]:
    """Children end normally, by os._exit and by a signal; the group of the parent does not notice."""
    codes = []
    for way in ("exit", "signal", "group"):
        child = os.fork()
        if child == 0:
            if way == "signal":
                os.kill(os.getpid(), signal.SIGKILL)
            if way == "group":
                try:
                    # The copy of a group is not a member: an error, not a hang and no damage.
                    dist.all_reduce(torch.ones(4))
                except Exception:
                    os._exit(3)
                os._exit(4)
            os._exit(0)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        x = torch.ones(100)
        dist.all_reduce(x)
        assert (x == dist.get_world_size()).all()
    return codes


@needs_backend
def test_forked_children(ranks: Ranks) -> None:
    assert ranks.values(fork_and_leave) == [[0, -signal.SIGKILL, 3]] * ranks.world


def wait_for_the_others(flag: str, asynchronous: bool) -> float:
    """Ranks other than the last are in the call; the last comes only after the signal."""
    last = dist.get_world_size() - 1
    dist.barrier()
    if dist.get_rank() == last:
        end = time.monotonic() + 20
        while not Path(flag).exists() and time.monotonic() < end:
            time.sleep(0.02)
    else:
        Path(f"{flag}.{dist.get_rank()}").touch()
    x = torch.ones(1000)
    if asynchronous:
        dist.all_reduce(x, async_op=True).wait()
    else:
        dist.all_reduce(x)
    return x[0].item()


@needs_backend
@pytest.mark.parametrize("asynchronous", [False, True], ids=["call", "wait"])
def test_ctrl_c_within_a_call(tmp_path: Path, asynchronous: bool) -> None:
    with Ranks(3) as own:
        flag = tmp_path / "interrupted"
        own.begin(wait_for_the_others, str(flag), asynchronous, timeout=20)
        end = time.monotonic() + 20
        while not all(Path(f"{flag}.{rank}").exists() for rank in (0, 1)) and time.monotonic() < end:
            time.sleep(0.02)
        time.sleep(0.3)
        own.signal(0, signal.SIGINT)
        time.sleep(0.5)
        flag.touch()
        first, *others = own.finish(20)
        assert first.error == "KeyboardInterrupt", first
        for outcome in others:
            assert outcome.error and outcome.error != "KeyboardInterrupt", outcome
            assert "rank 0" in outcome.text, outcome


def die(number: int) -> float:
    dist.barrier()
    if dist.get_rank() == 1:
        os.kill(os.getpid(), number)
    x = torch.ones(1000)
    dist.all_reduce(x)
    return x[0].item()


def test_death_of_a_rank_is_an_error_of_the_others() -> None:
    with Ranks(3) as own:
        outcomes = own.each(die, signal.SIGKILL, limit=30, timeout=20)
        assert outcomes[1].died == -signal.SIGKILL
        for outcome in (outcomes[0], outcomes[2]):
            assert outcome.error and outcome.elapsed < 10, outcome
            assert BACKEND == "gloo" or "rank 1" in outcome.text, outcome


def open_and_close(paths: list[str]) -> list[dict[str, int]]:
    seen = []
    for path in paths:
        initialize(BACKEND, path)
        group = dist.new_group(list(range(dist.get_world_size())))
        work = [dist.all_reduce(torch.ones(1000), group=g, async_op=True) for g in (None, group)]
        for w in work:
            w.wait()
        dist.destroy_process_group()
        seen.append(resources())
    return seen


def test_open_and_close_leaks_nothing(ranks: Ranks) -> None:
    rounds = 24
    shared = set(os.listdir("/dev/shm"))
    for seen in ranks.alone(open_and_close, [ranks.new_path() for _ in range(rounds)], limit=100):
        # What one round has closed, a peer may still hold for a moment.
        early, late = (
            {name: max(sample[name] for sample in part) for name in seen[0]}
            for part in (seen[4 : rounds // 2], seen[rounds // 2 :])
        )
        assert late["descriptors"] <= early["descriptors"], seen
        assert late["threads"] <= early["threads"] + 1, seen  # one may be about to end
        assert late["kB"] <= early["kB"] + 8192, seen
    assert set(os.listdir("/dev/shm")) <= shared


def killed() -> Any:
    dist.all_reduce(torch.ones(1 << 16))
    os.kill(os.getpid(), signal.SIGKILL)


def test_killed_ranks_leave_nothing_in_shared_memory() -> None:
    before = set(os.listdir("/dev/shm"))
    for _ in range(2):
        with Ranks(2) as own:
            assert [outcome.died for outcome in own.each(killed, limit=20)] == [-signal.SIGKILL] * 2
    assert set(os.listdir("/dev/shm")) <= before


PROGRAM = """
import torch, torch.distributed as dist
dist.init_process_group({backend!r})
x = torch.ones(3) * (dist.get_rank() + 1)
dist.all_reduce(x)
print("sum", x.tolist())
dist.destroy_process_group()
"""


def test_torchrun_of_a_program_that_imports_only_torch(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(backend=BACKEND))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)}
    done = subprocess.run(
        [*command, str(program)], env=inherited, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("[3.0, 3.0, 3.0]") == 2, done.stdout  # the ranks share the pipe
