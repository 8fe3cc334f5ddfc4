"""What the environment says: the ``COLLECTIVES_`` variables, and who started this process.

This is the one place that reads the environment. Each variable has an argument or option that wins over it.
"""

from __future__ import annotations

import difflib
import functools
import logging
import math
import os
import re
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collectives import processes

PREFIX = "COLLECTIVES_"


def _seconds(text: str) -> float:
    value = float(text)
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(text)
    return value


def _prefix(text: str) -> str:
    if text[-1].isdigit():
        raise ValueError(text)
    return text


def _level(text: str) -> str:
    if text.upper() not in ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"):
        raise ValueError(text)
    return text.upper()


def _folder(text: str) -> Path:
    return Path(text).expanduser().absolute()


@dataclass(frozen=True)
class Variable:
    """One environment variable: name without the prefix, form of the value, default, doc, and parser."""

    name: str
    form: str
    default: Any
    doc: str
    parse: Callable[[str], Any]


VARIABLES = {
    variable.name: variable
    for variable in (
        Variable(
            "TIMEOUT",
            "a positive number of seconds",
            600.0,
            "How long a communicator waits for a rank, where no timeout= is given.",
            _seconds,
        ),
        Variable(
            "LOG",
            "debug, info, warning, error or critical",
            None,
            'Prints what the logger "collectives" has to say to stderr, from this level on.',
            _level,
        ),
        Variable(
            "CACHE_DIR",
            "a path",
            None,
            "The folder for what is compiled on this machine; by default collectives in the user's cache.",
            _folder,
        ),
        Variable(
            "DUMP",
            "a path that does not end in a digit: a rank is put behind it",
            None,
            "Where flight records are written when a communicator breaks, and at SIGUSR2.",
            _prefix,
        ),
    )
}


def read(name: str, environ: Mapping[str, str] = os.environ) -> Any:
    """The parsed value of the variable ``COLLECTIVES_<name>``, or its default where it is unset or empty.

    Raises:
        ValueError: the value does not have the form that the variable wants.
    """
    variable = VARIABLES[name]
    text = environ.get(PREFIX + name, "").strip()
    if not text:
        return variable.default
    try:
        return variable.parse(text)
    except ValueError:
        raise ValueError(f"{PREFIX}{name}={text!r}: want {variable.form}") from None


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """The folder for what is compiled on this machine. It need not exist."""
    ours = read("CACHE_DIR", environ)
    return ours or _folder(environ.get("XDG_CACHE_HOME") or "~/.cache") / "collectives"


def variables_set(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables with our prefix that are set, known or not, as text."""
    return {name: environ[name] for name in sorted(environ) if name.startswith(PREFIX)}


def warn_unknown(environ: Mapping[str, str] = os.environ) -> None:
    """Warn of each set variable with our prefix that does not exist, naming the nearest one that does."""
    for name in variables_set(environ):
        if name.removeprefix(PREFIX) not in VARIABLES:
            _warn_once(name)


@functools.cache
def _warn_once(name: str) -> None:
    nearest = difflib.get_close_matches(name.removeprefix(PREFIX), VARIABLES, n=1, cutoff=0.5)
    hint = (
        f"did you mean {PREFIX}{nearest[0]}?"
        if nearest
        else "known: " + ", ".join(PREFIX + n for n in VARIABLES)
    )
    warnings.warn(f"unknown environment variable {name} is ignored ({hint})", stacklevel=4)


def configure_logging(environ: Mapping[str, str] = os.environ) -> None:
    """Attach a stderr handler to the logger "collectives" if COLLECTIVES_LOG asks for one.

    Without it the logger is left to the application, as is usual for a library. A second call changes
    nothing.
    """
    level = read("LOG", environ)
    logger = logging.getLogger("collectives")
    if level is None or any(handler.get_name() == "COLLECTIVES_LOG" for handler in logger.handlers):
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.set_name("COLLECTIVES_LOG")
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(process)d %(levelname)s: %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(level)
    logger.propagate = False


@dataclass(frozen=True)
class Launch:
    """Who started this process, and as which rank.

    Attributes:
        launcher: "torchrun", "collectives.launch", "RANK and WORLD_SIZE", "Open MPI", "Hydra" (MPICH and
            Intel MPI), "PMI" (another server of that protocol), "srun" or "none".
        rank: rank in the world.
        world_size: how many ranks the launcher started.
        local_rank: rank among those of this host; None if the launcher does not say.
        local_world_size: how many ranks are on this host; None if the launcher does not say.
        job: text that is equal in the processes of this job and in no other job that runs on this host; None
            if unknown.
    """

    launcher: str
    rank: int
    world_size: int
    local_rank: int | None = None
    local_world_size: int | None = None
    job: str | None = None

    def __post_init__(self) -> None:
        if self.world_size < 1 or not 0 <= self.rank < self.world_size:
            raise ValueError(f"{self.launcher} says rank {self.rank} of {self.world_size}: no such rank")


def launched(environ: Mapping[str, str] = os.environ) -> Launch:
    """Tell from the environment who started this process; a world of one if no launcher is recognised.

    Launchers are often nested (srun starts torchrun or MPI's daemons), so the innermost kind is looked for
    first.

    Raises:
        ValueError: the launcher's variables are incomplete or contradict each other.
    """
    for detect in (_torchrun, _open_mpi, _hydra, _srun):
        found = detect(environ)
        if found:
            return found
    _check_not_half_launched(environ)
    return Launch("none", 0, 1, 0, 1)


def _check_not_half_launched(environ: Mapping[str, str]) -> None:
    """A rank of several that took itself for a world of one would return wrong sums in silence.

    RANK alone is let pass: some container images set it for purposes of their own.
    """
    if environ.get("WORLD_SIZE", "1") != "1" and "RANK" not in environ:
        raise ValueError(f"WORLD_SIZE={environ['WORLD_SIZE']} is set and RANK is not: set both, or neither")


def _integer(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name)
    if text is None:
        raise ValueError(
            f"the environment variable {name} is missing, though this process looks like a rank of a job"
        )
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"the environment variable {name}={text!r} is not a number") from None


def _optional(environ: Mapping[str, str], name: str) -> int | None:
    return _integer(environ, name) if name in environ else None


def _torchrun(environ: Mapping[str, str]) -> Launch | None:
    if "RANK" not in environ or "WORLD_SIZE" not in environ:
        return None
    run = environ.get("TORCHELASTIC_RUN_ID")
    port = environ.get("MASTER_PORT")
    # A run id alone is not unique: torchrun calls every static run "none".
    job = (
        f"{run} {environ.get('TORCHELASTIC_RESTART_COUNT')} {environ.get('MASTER_ADDR')} {port}"
        if run or port
        else None
    )
    ours = (run or "").startswith("collectives.launch")
    return Launch(
        "collectives.launch" if ours else "torchrun" if run else "RANK and WORLD_SIZE",
        _integer(environ, "RANK"),
        _integer(environ, "WORLD_SIZE"),
        _optional(environ, "LOCAL_RANK"),
        _optional(environ, "LOCAL_WORLD_SIZE"),
        job,
    )


def _open_mpi(environ: Mapping[str, str]) -> Launch | None:
    if "OMPI_COMM_WORLD_RANK" not in environ:
        return None
    # Open MPI 4 hashes its namespace to 32 bits, and host name and process id may coincide in two containers
    # that share a network: the port of its server tells them apart.
    servers = sorted({uri for name, uri in environ.items() if name.startswith("PMIX_SERVER_URI")})
    namespace = environ.get("PMIX_NAMESPACE")
    return Launch(
        "Open MPI",
        _integer(environ, "OMPI_COMM_WORLD_RANK"),
        _integer(environ, "OMPI_COMM_WORLD_SIZE"),
        _optional(environ, "OMPI_COMM_WORLD_LOCAL_RANK"),
        _optional(environ, "OMPI_COMM_WORLD_LOCAL_SIZE"),
        " ".join([namespace, *servers]) if namespace else None,
    )


def _hydra(environ: Mapping[str, str]) -> Launch | None:
    if "PMI_RANK" not in environ or "PMI_SIZE" not in environ:
        return None
    hydra = "MPI_LOCALNRANKS" in environ
    if not hydra and _slurm_step(environ):
        return None  # srun --mpi=pmi2 sets these as well, and srun's own variables say more
    # Hydra gives its jobs no name: the process that serves PMI to all ranks of this host is the job.
    server = processes.server_of(environ.get("PMI_FD", "")) or processes.ancestor_named("hydra_")
    return Launch(
        "Hydra" if hydra else "PMI",
        _integer(environ, "PMI_RANK"),
        _integer(environ, "PMI_SIZE"),
        _optional(environ, "MPI_LOCALRANKID"),
        _optional(environ, "MPI_LOCALNRANKS"),
        str(server) if server else None,
    )


def _slurm_step(environ: Mapping[str, str]) -> str | None:
    return environ.get("SLURM_STEP_ID", environ.get("SLURM_STEPID"))


def _srun(environ: Mapping[str, str]) -> Launch | None:
    # Batch scripts and salloc shells have most of these variables too, but no step.
    step = _slurm_step(environ)
    if "SLURM_PROCID" not in environ or step is None:
        return None
    job = environ.get("SLURM_JOB_ID", environ.get("SLURM_JOBID"))
    # SLURM_NTASKS may be what the job asked for; the step's own number wins.
    size = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environ else "SLURM_NTASKS"
    return Launch(
        "srun",
        _integer(environ, "SLURM_PROCID"),
        _integer(environ, size),
        _optional(environ, "SLURM_LOCALID"),
        _slurm_tasks_here(environ),
        f"{job}.{step} {environ.get('SLURM_RESTART_COUNT', '0')}" if job else None,
    )


def _slurm_tasks_here(environ: Mapping[str, str]) -> int | None:
    # The number of tasks of each node, such as "4(x2),3".
    runs = re.findall(r"(\d+)(?:\(x(\d+)\))?", environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
    tasks = [int(count) for count, repeat in runs for _ in range(int(repeat or 1))]
    node = _optional(environ, "SLURM_NODEID") or 0
    return tasks[node] if 0 <= node < len(tasks) else None
