"""How ranks find each other: at the abstract socket and through torch stores, with threads as ranks."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from collectives import rendezvous
from collectives.environment import Launch
from collectives.errors import CollectiveError, CollectiveTimeoutError, MismatchError, PeerDiedError
from collectives.rendezvous import meeting

HELLO = struct.Struct("<8sIIddQ")


@pytest.fixture(autouse=True)
def short_linger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "_LINGER", 0.7)


def new_name() -> str:
    return f"collectives-test-{uuid.uuid4()}"


def outcomes(calls: list[Callable[[], Any]]) -> list[Any]:
    """What each call, made in a thread of its own, returned or raised."""
    with ThreadPoolExecutor(len(calls)) as threads:
        futures = [threads.submit(call) for call in calls]
        return [future.exception() or future.result() for future in futures]


def meet(ranks: list[int], world: int, timeout: float = 20.0, name: str = "") -> list[Any]:
    name = name or new_name()
    return outcomes([lambda r=r: meeting.meet(name, r, world, b"%04d" % r, timeout) for r in ranks])


@pytest.mark.parametrize("world", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("length", [0, 1, 100, 1 << 20])
def test_blobs_arrive_in_rank_order(world: int, length: int) -> None:
    name = new_name()
    blobs = [os.urandom(length) for _ in range(world)]
    got = outcomes([lambda r=r: meeting.meet(name, r, world, blobs[r], 20.0) for r in range(world)])
    assert got == [blobs] * world


@pytest.mark.parametrize(("world", "missing"), [(2, [1]), (3, [2]), (5, [1, 3]), (2, [0])])
def test_missing_ranks_are_named_on_every_rank(world: int, missing: list[int]) -> None:
    start = time.monotonic()
    errors = meet([rank for rank in range(world) if rank not in missing], world, timeout=0.4)
    assert time.monotonic() - start < 2.4
    for error in errors:
        assert isinstance(error, CollectiveTimeoutError)
        assert error.ranks == tuple(missing)
        assert error.collective == "rendezvous"
        assert "within 0.4 s" in str(error)
        assert all(str(rank) in str(error) for rank in missing)
        assert "check" in str(error)


def test_shortest_timeout_rules_and_all_learn_who_was_missing() -> None:
    name = new_name()
    start = time.monotonic()
    errors = outcomes(
        [
            lambda: meeting.meet(name, 0, 3, b"x", 60.0),
            lambda: meeting.meet(name, 1, 3, b"x", 0.3),
        ]
    )
    assert time.monotonic() - start < 2.3
    assert [error.ranks for error in errors] == [(2,), (2,)]
    assert all("within 0.3 s" in str(error) for error in errors)


@pytest.mark.parametrize("ranks", [[0, 1, 1], [0, 1, 2, 2], [0, 0], [0, 0, 1]])
def test_two_processes_with_one_rank(ranks: list[int]) -> None:
    twice = max(rank for rank in ranks if ranks.count(rank) > 1)
    for error in meet(ranks, world=4, timeout=5.0):
        assert isinstance(error, MismatchError)
        assert twice in error.ranks
        assert f"second to say that it is rank {twice}" in str(error)
        assert str(os.getpid()) in str(error)


def test_contradictory_world_sizes_also_reach_the_one_who_comes_late() -> None:
    name = new_name()

    def late() -> Any:
        time.sleep(0.5)
        return meeting.meet(name, 2, 4, b"x", 5.0)

    def call(rank: int, world: int) -> Callable[[], Any]:
        return lambda: meeting.meet(name, rank, world, b"x", 5.0)

    errors = outcomes([call(0, 4), call(1, 3), late])
    for error in errors:
        assert isinstance(error, MismatchError)
        assert "rank 1" in str(error)
        assert "says that there are 3 ranks, rank 0 says 4" in str(error)


def test_blobs_of_unequal_length() -> None:
    name = new_name()
    errors = outcomes([lambda r=r: meeting.meet(name, r, 2, b"x" * (r + 1), 5.0) for r in range(2)])
    assert all(
        isinstance(error, MismatchError) and "brings 2 bytes, rank 0 1" in str(error) for error in errors
    )


def connect(name: str) -> socket.socket:
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    while client.connect_ex("\0" + name):
        time.sleep(0.01)
    return client


def test_a_rank_that_goes_away_is_named() -> None:
    name = new_name()

    def goes_away() -> None:
        with connect(name) as client:
            client.sendall(HELLO.pack(b"collect1", 2, 3, 9.0, 9.0, 1) + b"x")
            time.sleep(0.1)

    calls = [lambda: meeting.meet(name, 0, 3, b"x", 9.0), goes_away]
    error, _ = outcomes(calls)
    assert isinstance(error, PeerDiedError)
    assert error.ranks == (2,)


def test_rank_0_that_goes_away_is_named() -> None:
    name = new_name()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind("\0" + name)
        listener.listen()

        def goes_away() -> None:
            guest, _ = listener.accept()
            guest.recv(1000)
            guest.close()

        error, _ = outcomes([lambda: meeting.meet(name, 1, 2, b"x", 9.0), goes_away])
    assert isinstance(error, PeerDiedError)
    assert error.ranks == (0,)


def test_strangers_do_no_harm() -> None:
    name = new_name()

    def stranger() -> None:
        for nonsense in (b"", b"GET / HTTP/1.0\r\n\r\n" * 10, b"collect1" + b"\xff" * 100):
            with connect(name) as client:
                client.sendall(nonsense)
                time.sleep(0.05)

    def late() -> Any:
        time.sleep(0.5)
        return meeting.meet(name, 1, 2, b"b", 9.0)

    got = outcomes([lambda: meeting.meet(name, 0, 2, b"a", 9.0), stranger, late])
    assert got == [[b"a", b"b"], None, [b"a", b"b"]]


def test_name_held_by_a_silent_stranger() -> None:
    name = new_name()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as holder:
        holder.bind("\0" + name)
        with pytest.raises(CollectiveError, match="another process listens") as caught:
            meeting.meet(name, 0, 2, b"x", 0.3)
    assert caught.value.ranks == (0,)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user as well")
def test_another_user_is_turned_away() -> None:
    name = new_name()
    visit = f"""
import os; os.setuid(12345)
from collectives.rendezvous import meeting
try: meeting.meet({name!r}, 1, 2, b"evil", 1.5)
except Exception as error: print(type(error).__name__, error)
"""
    # Imported before the change of user, who may not be allowed to read this checkout.
    setup = "import collectives.rendezvous.meeting\n"
    thread = threading.Thread(target=lambda: got.extend(meet([0], 2, 2.0, name)))
    got: list[Any] = []
    thread.start()
    text = subprocess.run(
        [sys.executable, "-c", setup + visit], capture_output=True, text=True, check=True
    ).stdout
    thread.join()
    assert "another user" in text
    assert got[0].ranks == (1,)


def test_nothing_stays_open() -> None:
    before = os.listdir("/proc/self/fd"), set(os.listdir("/dev/shm"))
    for _ in range(20):
        meet([0, 1, 2], 3)
    meet([0, 1], 3, 0.05)
    assert (os.listdir("/proc/self/fd"), set(os.listdir("/dev/shm"))) == before


def environment(rank: int, world: int, job: str | None, local: int | None = None) -> rendezvous.Rendezvous:
    return rendezvous.EnvironmentRendezvous(Launch("test", rank, world, rank, local, job))


def test_environment_alone() -> None:
    alone = rendezvous.rendezvous(rendezvous.EnvironmentRendezvous(Launch("none", 0, 1)))
    assert (alone.rank, alone.world_size) == (0, 1)
    assert alone.exchange(b"me", 1.0) == [b"me"]


def test_environment_refuses_ranks_on_other_hosts() -> None:
    with pytest.raises(RuntimeError, match=r"only 2 of them on this host.*ranks of one host"):
        environment(0, 4, "job", local=2)


def test_environment_needs_to_know_the_job() -> None:
    with pytest.raises(RuntimeError, match="MASTER_PORT"):
        environment(0, 2, None)


def test_source_of_unknown_kind() -> None:
    for source in (7, "env", (1, 2, 3), object()):
        with pytest.raises(TypeError, match="no way to meet through"):
            rendezvous.rendezvous(source)


def test_neither_torch_nor_mpi_is_imported() -> None:
    code = (
        "import sys; from collectives.rendezvous import rendezvous; rendezvous()\n"
        "print({'torch', 'mpi4py'} & set(sys.modules))"
    )
    environ = {
        name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "PMI", "RANK"))
    }
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environ, check=True
    )
    assert done.stdout.strip() == "set()"


class TestStore:
    """Ranks as threads over a torch store."""

    def test_groups_on_one_store(self, tmp_path: Path) -> None:
        dist = pytest.importorskip("torch.distributed")

        def call(rank: int, group: int) -> Callable[[], Any]:
            store = dist.PrefixStore(f"group{group}", dist.FileStore(str(tmp_path / "store"), 3))
            met = rendezvous.rendezvous((store, rank, 3))
            return lambda: [met.exchange(b"%d%d%d" % (group, rank, turn), 9.0) for turn in range(3)]

        got = outcomes([call(rank, group) for rank in range(3) for group in range(2)])
        for i, blobs in enumerate(got):
            assert blobs == [[b"%d%d%d" % (i % 2, rank, turn) for rank in range(3)] for turn in range(3)]

    def test_second_object_for_the_same_store_reads_nothing_old(self) -> None:
        dist = pytest.importorskip("torch.distributed")
        store = dist.HashStore()
        for turn in range(3):
            calls = [
                lambda r=r, turn=turn: rendezvous.StoreRendezvous(store, r, 2).exchange(
                    b"%d%d" % (r, turn), 9.0
                )
                for r in range(2)
            ]
            assert outcomes(calls) == [[b"0%d" % turn, b"1%d" % turn]] * 2

    def test_missing_rank_is_named(self) -> None:
        dist = pytest.importorskip("torch.distributed")
        store = dist.HashStore()
        start = time.monotonic()
        errors = outcomes(
            [lambda r=r: rendezvous.rendezvous((store, r, 4)).exchange(b"x", 0.3) for r in (0, 3)]
        )
        assert time.monotonic() - start < 2.3
        assert [error.ranks for error in errors] == [(1, 2)] * 2
        assert all("ranks 1 and 2" in str(error) for error in errors)

    def test_store_that_is_gone(self) -> None:
        class Gone:
            def add(self, key: str, amount: int) -> int:
                raise RuntimeError("connection reset")

        with pytest.raises(CollectiveError, match="torch Gone failed: connection reset"):
            rendezvous.StoreRendezvous(Gone(), 0, 2).exchange(b"x", 1.0)

    def test_rank_outside(self) -> None:
        with pytest.raises(ValueError, match="rank 2 of 2"):
            rendezvous.StoreRendezvous(object(), 2, 2)
