"""The COLLECTIVES_ variables, and what is read from the environments of launchers."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import warnings

import pytest

from collectives import environment, processes
from collectives.environment import Launch, launched

TORCHRUN = {
    "RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "0",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_SIZE": "3",
    "OMPI_COMM_WORLD_LOCAL_RANK": "2",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "3",
    "PMIX_NAMESPACE": "prterun-host-1234@1",
    "PMIX_SERVER_URI4": "prterun-host-1234@0.0;tcp4://127.0.0.1:45423",
}
HYDRA = {"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"}
SRUN = {
    "SLURM_PROCID": "3",
    "SLURM_NTASKS": "9",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_TASKS_PER_NODE": "4",
    "SLURM_LOCALID": "3",
    "SLURM_NODEID": "0",
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "5",
}


def test_values_and_defaults() -> None:
    assert environment.read("TIMEOUT", {}) == 600.0
    assert environment.read("TIMEOUT", {"COLLECTIVES_TIMEOUT": " 2.5 "}) == 2.5
    assert environment.read("TIMEOUT", {"COLLECTIVES_TIMEOUT": ""}) == 600.0
    assert environment.read("LOG", {"COLLECTIVES_LOG": "debug"}) == "DEBUG"


@pytest.mark.parametrize("text", ["0", "-1", "soon", "inf", "nan", "10s"])
def test_bad_timeout_is_refused_with_name_and_form(text: str) -> None:
    with pytest.raises(ValueError, match=r"COLLECTIVES_TIMEOUT=.*positive number of seconds"):
        environment.read("TIMEOUT", {"COLLECTIVES_TIMEOUT": text})


def test_bad_log_level() -> None:
    with pytest.raises(ValueError, match="COLLECTIVES_LOG='loud': want debug, info"):
        environment.read("LOG", {"COLLECTIVES_LOG": "loud"})


def test_every_variable_says_what_it_is_for() -> None:
    for name, variable in environment.VARIABLES.items():
        assert name == variable.name == name.upper()
        assert variable.doc.endswith(".")
        assert variable.form


def test_unknown_names_warn_once_with_the_nearest() -> None:
    environment._warn_once.cache_clear()
    environ = {"COLLECTIVES_TIMOUT": "3", "COLLECTIVES_LOG": "info", "COLLECT": "x"}
    with pytest.warns(
        UserWarning, match=r"COLLECTIVES_TIMOUT is ignored \(did you mean COLLECTIVES_TIMEOUT\?\)"
    ):
        environment.warn_unknown(environ)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        environment.warn_unknown(environ)
    with pytest.warns(UserWarning, match="known: COLLECTIVES_TIMEOUT, COLLECTIVES_LOG"):
        environment.warn_unknown({"COLLECTIVES_XYZZY": ""})


def test_log_goes_to_stderr_only_if_asked_for() -> None:
    code = (
        "import logging; from collectives import environment; environment.configure_logging()\n"
        "environment.configure_logging(); logging.getLogger('collectives.x').info('hello')"
    )
    for value, count in (("info", 1), ("warning", 0), ("", 0)):
        environ = os.environ | {"COLLECTIVES_LOG": value}
        done = subprocess.run(
            [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True
        )
        assert done.stderr.count("hello") == count
    assert not logging.getLogger("collectives").handlers


def test_no_launcher() -> None:
    assert launched({"PATH": "/bin", "RANK": "5"}) == Launch("none", 0, 1, 0, 1)


def test_torchrun() -> None:
    assert launched(TORCHRUN) == Launch("torchrun", 1, 4, 1, 4, "none 0 localhost 29500")


def test_static_torchruns_at_two_ports_and_restarts_are_different_jobs() -> None:
    jobs = {
        launched(TORCHRUN).job,
        launched(TORCHRUN | {"MASTER_PORT": "29501"}).job,
        launched(TORCHRUN | {"TORCHELASTIC_RESTART_COUNT": "1"}).job,
    }
    assert len(jobs) == 3


def test_rank_and_world_size_alone() -> None:
    found = launched({"RANK": "0", "WORLD_SIZE": "2"})
    assert found == Launch("RANK and WORLD_SIZE", 0, 2)
    assert found.job is None


def test_open_mpi() -> None:
    found = launched(OPEN_MPI)
    assert found == Launch("Open MPI", 2, 3, 2, 3, found.job)
    assert found.job is not None
    assert (
        found.job != launched(OPEN_MPI | {"PMIX_SERVER_URI4": "prterun-host-1234@0.0;tcp4://127.0.0.1:1"}).job
    )


def test_hydra_knows_its_job_only_by_a_process() -> None:
    assert launched(HYDRA | {"PMI_FD": "999999"}) == Launch("Hydra", 0, 2, 0, 2)


def test_srun() -> None:
    assert launched(SRUN) == Launch("srun", 3, 4, 3, 4, "77.5 0")
    assert launched(SRUN | {"SLURM_STEP_TASKS_PER_NODE": "2(x2)"}).local_world_size == 2
    there = {"SLURM_STEP_TASKS_PER_NODE": "3,1", "SLURM_NODEID": "1", "SLURM_LOCALID": "0"}
    assert launched(SRUN | there).local_world_size == 1


def test_batch_script_is_not_a_step() -> None:
    del (batch := dict(SRUN))["SLURM_STEP_ID"]
    assert launched(batch).launcher == "none"


def test_innermost_launcher_wins() -> None:
    assert launched(SRUN | TORCHRUN).launcher == "torchrun"
    assert launched(SRUN | OPEN_MPI).launcher == "Open MPI"
    assert launched(SRUN | HYDRA).launcher == "Hydra"
    assert launched(SRUN | {"PMI_RANK": "3", "PMI_SIZE": "4"}).launcher == "srun"


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        (TORCHRUN | {"RANK": "four"}, "RANK='four' is not a number"),
        (TORCHRUN | {"RANK": "4"}, "torchrun says rank 4 of 4"),
        (TORCHRUN | {"WORLD_SIZE": "0"}, "rank 1 of 0"),
        ({"OMPI_COMM_WORLD_RANK": "0"}, "OMPI_COMM_WORLD_SIZE is missing"),
        (SRUN | {"SLURM_STEP_NUM_TASKS": "2"}, "srun says rank 3 of 2"),
    ],
)
def test_contradictions(environ: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        launched(environ)


def test_ancestors_begin_with_the_parent_and_end_with_init() -> None:
    chain = [process for _, process in processes.ancestors()]
    assert chain[0].pid == os.getppid()
    assert chain[-1].pid == 1 or len(chain) == 1
    assert all(process.start >= 0 for process in chain)
    assert processes.ancestor_named("no such name") is None


def test_server_is_believed_only_if_it_is_an_ancestor() -> None:
    assert processes.server_of("") is None
    assert processes.server_of("-1") is None
    assert processes.server_of("999999") is None
    with open(os.devnull) as file:
        assert processes.server_of(str(file.fileno())) is None
    with socket.socket() as internet:
        assert processes.server_of(str(internet.fileno())) is None
    ours, theirs = socket.socketpair()
    with ours, theirs:  # its maker is this process, no ancestor of its own
        assert processes.server_of(str(ours.fileno())) is None
        code = f"from collectives import processes; print(processes.server_of('{theirs.fileno()}').pid)"
        child = subprocess.run(
            [sys.executable, "-c", code],
            pass_fds=[theirs.fileno()],
            capture_output=True,
            text=True,
            check=True,
        )
    assert int(child.stdout) == os.getpid()
