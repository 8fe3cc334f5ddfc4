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


def fork_in_the_middle() -> list[str]:
    """While calls of the parent are on their way, a child gets errors."""
    rank, world = dist.get_rank(), dist.get_world_size()
    texts = []
    group = dist.new_group()
    if rank == 0:
        pending = dist.all_reduce(torch.ones(3), group=group, async_op=True)
        message = dist.irecv(torch.ones(3), world - 1, group=group)
        time.sleep(0.05)  # the worker is in the call
        calls = (
            lambda: dist.all_reduce(torch.ones(4), group=group),
            lambda: dist.all_reduce(torch.ones(4), group=group, async_op=True).wait(),
            lambda: dist.recv(torch.ones(3), world - 1, group=group),
            lambda: group.barrier().wait(),
            pending.wait,
            message.wait,
        )
        for call in calls:
            reader, writer = os.pipe()
            child = os.fork()
            if child == 0:
                try:
                    call()
                    text = "nothing"
                except Exception as error:
                    text = str(error)
                os.write(writer, text.encode())
                os._exit(0)
            os.close(writer)
            with open(reader, encoding="utf-8") as pipe:
                texts.append(pipe.read())
            os.waitpid(child, 0)
    dist.barrier()
    if rank != 0:
        dist.all_reduce(torch.ones(3), group=group)
    if rank == world - 1:
        dist.send(torch.ones(3), 0, group=group)
    if rank == 0:
        pending.wait()
        message.wait()
    return texts


@needs_backend
def test_children_forked_while_calls_are_on_their_way(torch_pools: Any) -> None:
    texts, _ = torch_pools(2).values(fork_in_the_middle, limit=30)
    assert len(texts) == 6 and all("parent process" in text for text in texts), texts


def wait_for_the_others(flag: str, way: str) -> float:
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
    if way == "wait behind another":
        dist.all_reduce(torch.ones(1), async_op=True)
    if way == "call":
        dist.all_reduce(x)
    else:
        dist.all_reduce(x, async_op=True).wait()
    return x[0].item()


@needs_backend
@pytest.mark.parametrize("way", ["call", "wait", "wait behind another"])
def test_ctrl_c_within_a_call(tmp_path: Path, way: str) -> None:
    with Ranks(3) as own:
        flag = tmp_path / "interrupted"
        own.begin(wait_for_the_others, str(flag), way, timeout=20)
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


LEAVES_WITH_A_CALLBACK = """
import os, sys, time, torch, torch.distributed as dist
rank = int(os.environ["RANK"])
dist.init_process_group("collectives", init_method="file://" + sys.argv[1], rank=rank, world_size=2)
if rank == 0:
    def then(future):
        for _ in range(20):
            time.sleep(0.02)
        print("called back")
    work = dist.irecv(torch.ones(3), 1)
    work.get_future().then(then)
    time.sleep(0.3)
else:
    time.sleep(0.1)
    dist.send(torch.ones(3), 0)
    time.sleep(0.6)
"""


@needs_backend
def test_a_process_that_ends_while_a_message_calls_back(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", LEAVES_WITH_A_CALLBACK, str(tmp_path / "store")]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)}
    processes = [
        subprocess.Popen(
            command,
            env=inherited | {"RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    ends = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], ends
    assert "called back" in ends[0][0], ends


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
