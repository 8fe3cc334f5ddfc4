"""``python -m collectives.launch``: what the ranks get, how they end, and that none is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

import pytest

from collectives.launch import bindings, spawn

LAUNCH = [sys.executable, "-m", "collectives.launch"]
NAMES = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
)


def launch(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*LAUNCH, *arguments], capture_output=True, text=True, env=os.environ | environ, timeout=60
    )


def shell(world: int, script: str) -> subprocess.CompletedProcess[str]:
    return launch("-np", str(world), "bash", "-c", script)


def start(world: int, script: str, stdin: IO[bytes] | int | None = None) -> subprocess.Popen[str]:
    """Start ranks of a shell script and wait until each has written a line, its process id first."""
    command = [*LAUNCH, "-np", str(world), "bash", "-c", script]
    pipe = subprocess.PIPE
    # A shell that runs the tests in the background has them ignore SIGINT, and launch honours that.
    restored = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # noqa: E731
    return subprocess.Popen(command, stdin=stdin, stdout=pipe, stderr=pipe, text=True, preexec_fn=restored)


def lines(process: subprocess.Popen[str], count: int) -> list[str]:
    assert process.stdout is not None
    return sorted(process.stdout.readline().strip() for _ in range(count))


def eventually(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return False


def running(pids: Sequence[str]) -> list[str]:
    """Those of the processes that run; a zombie, which waits for its parent, does not."""

    def state(pid: str) -> str:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return "X"

    return [pid for pid in pids if state(pid) not in "XZ"]


@pytest.mark.parametrize("world", [1, 2, 3, 5, 8])
def test_ranks_get_their_environment(world: int) -> None:
    done = shell(world, f"echo {' '.join('$' + name for name in NAMES)}")
    assert done.returncode == 0, done.stderr
    rows = sorted(line.split() for line in done.stdout.splitlines())
    for rank, row in enumerate(rows):
        assert row[:5] == [str(rank), str(world), str(rank), str(world), "127.0.0.1"]
    assert len(rows) == world
    assert len({tuple(row[5:]) for row in rows}) == 1


def test_outer_launchers_are_forgotten() -> None:
    outer = {
        "OMPI_COMM_WORLD_RANK": "7",
        "PMI_RANK": "7",
        "PMI_FD": "3",
        "PMIX_NAMESPACE": "x",
        "SLURM_PROCID": "7",
        "SLURM_STEP_ID": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "OMPI_MCA_btl": "self",
    }
    done = launch("-np", "1", "env", **outer)
    names = {line.partition("=")[0] for line in done.stdout.splitlines()}
    assert names & set(outer) == {"OMPI_MCA_btl"}


def test_two_launches_are_two_jobs() -> None:
    runs = {shell(1, "echo $TORCHELASTIC_RUN_ID").stdout for _ in range(2)}
    assert len(runs) == 2


def test_scripts_modules_and_arguments(tmp_path: Path) -> None:
    script = tmp_path / "show.py"
    script.write_text("import sys; print(sys.argv[1:], sys.executable)")
    for prefix in ([str(script)], ["--", str(script)]):
        done = launch("-np", "1", *prefix, "-np", "--", "-h", "--bind")
        assert done.stdout.strip() == f"{['-np', '--', '-h', '--bind']} {sys.executable}"
    done = launch("-n", "2", "-m", "platform", "--terse")
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-np", "2"], "no program to run"),
        (["-np", "2", "--", "-m"], "no program to run"),
        (["-np", "0", "true"], "cannot start 0 ranks"),
        (["-np", "two", "true"], "invalid int value"),
        (["true"], "required: -np"),
        (["-np", "2", "no/such.py"], "no such script: no/such.py"),
        (["-np", "2", "no-such-program"], "no such program: no-such-program"),
        (["-np", "2", "--bnid", "true"], "unrecognized arguments: --bnid"),
    ],
)
def test_bad_command_lines(arguments: list[str], message: str) -> None:
    done = launch(*arguments)
    assert done.returncode == 2
    assert message in done.stderr


def test_first_failure_is_named_and_ends_the_others() -> None:
    began = time.monotonic()
    done = shell(3, 'if [ "$RANK" = 1 ]; then exit 7; fi; exec sleep 60')
    assert time.monotonic() - began < 10
    assert done.returncode == 7
    assert "rank 1 (process" in done.stderr
    assert "exited with status 7; ending the other 2" in done.stderr


def test_a_rank_ended_by_a_signal() -> None:
    done = shell(2, 'if [ "$RANK" = 0 ]; then kill -KILL $$; fi; exec sleep 60')
    assert done.returncode == 128 + signal.SIGKILL
    assert "rank 0" in done.stderr
    assert "was ended by SIGKILL" in done.stderr


def test_what_ignores_sigterm_is_killed_with_its_children() -> None:
    process = start(
        2, 'trap "" TERM; echo $$; sleep 60 & echo $!; [ "$RANK" = 1 ] && exit 3; sleep 60; sleep 60'
    )
    pids = lines(process, 4)
    began = time.monotonic()
    _, errors = process.communicate(timeout=30)
    assert 4 < time.monotonic() - began < 10
    assert process.returncode == 3
    assert "killing rank 0: SIGTERM was ignored for 5 s" in errors
    assert not running(pids)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_signals_reach_the_ranks_once(number: signal.Signals) -> None:
    name = number.name.removeprefix("SIG")
    process = start(2, f'trap "echo got; exit 0" {name}; echo $$; while :; do sleep 0.05; done')
    assert len(lines(process, 2)) == 2
    process.send_signal(number)
    output, _ = process.communicate(timeout=20)
    assert output.split() == ["got", "got"]
    assert process.returncode == 0


def test_suspended_launcher_suspends_its_ranks() -> None:
    process = start(2, "echo $$; exec sleep 60")
    pids = lines(process, 2)

    def state(pid: str) -> str:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]

    process.send_signal(signal.SIGTSTP)
    assert eventually(lambda: all(state(pid) == "T" for pid in [*pids, str(process.pid)]))
    process.send_signal(signal.SIGCONT)
    assert eventually(lambda: all(state(pid) == "S" for pid in pids))
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20)
    assert not running(pids)


def test_ignored_hangup_stays_ignored() -> None:
    script = 'trap "" HUP; exec "$@" bash -c "echo \\$\\$; sleep 1; echo done"'
    command = ["bash", "-c", script, "bash", *LAUNCH, "-np", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        rank = int(process.stdout.readline())
        process.send_signal(signal.SIGHUP)
        os.kill(rank, signal.SIGHUP)
        assert process.stdout.readline().strip() == "done"
    assert process.returncode == 0


def test_killed_launcher_leaves_no_rank_behind() -> None:
    process = start(3, "echo $$; exec sleep 60")
    pids = lines(process, 3)
    assert len(running(pids)) == 3
    process.kill()
    process.wait()
    assert eventually(lambda: not running(pids), 2.0)


def test_rank_0_reads_stdin_and_the_others_nothing() -> None:
    process = subprocess.run(
        [*LAUNCH, "-np", "2", "bash", "-c", "echo $RANK $(cat)"],
        input="hello",
        capture_output=True,
        text=True,
    )
    assert sorted(process.stdout.split("\n")[:2]) == ["0 hello", "1"]


def test_spawn_from_python(tmp_path: Path) -> None:
    script = f"echo $RANK $ODD > {tmp_path}/$RANK; exit $((RANK * 3))"
    handlers = signal.getsignal(signal.SIGTERM)
    descriptors = os.listdir("/proc/self/fd")
    assert spawn(["bash", "-c", script], 1, environ={"ODD": "x", "PATH": os.environ["PATH"]}) == 0
    assert (tmp_path / "0").read_text() == "0 x\n"
    assert spawn(["bash", "-c", script], 2) == 3
    with pytest.raises(FileNotFoundError):
        spawn(["/no/such/program"], 2)
    with pytest.raises(ValueError, match="want at least 1"):
        spawn(["true"], 0)
    assert signal.getsignal(signal.SIGTERM) == handlers
    assert os.listdir("/proc/self/fd") == descriptors


def test_dealing_cores() -> None:
    assert bindings([4, 5, 6, 7], 2) == [{4, 5}, {6, 7}]
    assert bindings([0, 2, 4, 6, 8], 2) == [{0, 2}, {4, 6}]
    assert bindings([3], 1) == [{3}]
    assert bindings([0, 1], 3) is None


def test_binding_uses_only_allowed_cores(tmp_path: Path) -> None:
    allowed = sorted(os.sched_getaffinity(0))
    # In one write: the ranks share the pipe.
    show = "import os; os.write(1, f'{sorted(os.sched_getaffinity(0))}\\n'.encode())"
    done = launch("-np", str(len(allowed)), "--bind", sys.executable, "-c", show)
    assert sorted(done.stdout.split()) == sorted(f"[{core}]" for core in allowed)
    last = f"import os; os.sched_setaffinity(0, {{{allowed[-1]}}})\n"
    code = (
        last
        + f"from collectives.launch import spawn; spawn([{sys.executable!r}, '-c', {show!r}], 2, bind=True)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [f"[{allowed[-1]}]"] * 2
    assert "not binding: 2 ranks, but this process may use only 1 cores" in done.stderr


def test_torch_finds_its_master() -> None:
    pytest.importorskip("torch")
    code = (
        "import torch, torch.distributed as dist; dist.init_process_group('gloo'); x = torch.ones(1)\n"
        "dist.all_reduce(x); print(int(x)); dist.destroy_process_group()"
    )
    done = launch("-np", "2", sys.executable, "-c", code)
    assert "".join(done.stdout.split()) == "22", done.stderr
