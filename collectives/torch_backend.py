"""The torch.distributed backend "collectives": how torch learns of it, and how its module is found.

Importing this imports no torch.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import logging
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import _collectives_autoload
from collectives import flight_record
from collectives.rendezvous.store import StoreRendezvous

_C10D = "torch.distributed.distributed_c10d"
_MODULE = "collectives._torch"
OLDEST, NEWEST = (2, 11), (2, 15)


class _Registration(importlib.abc.MetaPathFinder):
    """Registers the backend as soon as torch.distributed is imported.

    The entry point does the same in an installed package, but not with TORCH_DEVICE_BACKEND_AUTOLOAD=0, nor
    from a source tree that is only on the path. Finds the one module and then removes itself.
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != _C10D:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_register(module: ModuleType) -> None:
            execute(module)
            _collectives_autoload.register()

        spec.loader.exec_module = execute_and_register  # type: ignore[method-assign]
        return spec


def register() -> None:
    """Make the backend known: now if torch.distributed is imported, else as soon as it will be."""
    if _C10D in sys.modules:
        _collectives_autoload.register()
    else:
        sys.meta_path.insert(0, _Registration())


def minor(version: str) -> tuple[int, int]:
    """Major and minor number of a version of torch: those that the layout of its classes depends on."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is None:
        raise ImportError(f"torch calls its version {version!r}, which is no version")
    return int(numbers[1]), int(numbers[2])


def check_supported(version: str) -> None:
    """Raise ImportError unless this version of torch is one that ``collectives._torch`` can be built for."""
    if not OLDEST <= minor(version) <= NEWEST:
        oldest, newest = (".".join(map(str, numbers)) for numbers in (OLDEST, NEWEST))
        raise ImportError(
            f"torch {version} is installed, but the torch backend of this version of collectives needs torch "
            f"{oldest} to {newest}"
        )


def built_for() -> str | None:
    """The version of torch that the installed module was built for; None if none is installed."""
    try:
        import collectives._torch_built_for as built
    except ModuleNotFoundError:
        return None
    return built.TORCH


def installed_fits(version: str) -> bool:
    """Whether a module is installed that may be loaded beside this version of torch."""
    built = built_for()
    return built is not None and minor(built) == minor(version)


def load() -> ModuleType:
    """The module ``collectives._torch`` for the torch that is running: the installed one, or build-torch's.

    Raises:
        ImportError: there is no torch, or no module for it; the message says what to do.
    """
    if _MODULE in sys.modules:
        return sys.modules[_MODULE]
    import torch  # first, because its libraries are found by being loaded

    from collectives import build_torch

    check_supported(torch.__version__)
    if installed_fits(torch.__version__):
        return importlib.import_module(_MODULE)
    path = build_torch.module_path(torch.__version__)
    if path.exists():
        return _load_file(path)
    built = built_for()
    raise ImportError(
        f"collectives._torch was {f'built for torch {built}' if built else 'not built'}, and torch "
        f"{torch.__version__} is running: run `python -m collectives build-torch`, or reinstall collectives "
        "with pip install --no-build-isolation"
    )


def _load_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(_MODULE, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[_MODULE] = module
    return module


_shuts_down = False


def create(options: Any, pg_options: Any) -> Any:
    """Make the backend of one group and connect its ranks; torch.distributed calls it on every member.

    Args:
        options: torch's DistributedBackendOptions: store, rank, size, timeout.
        pg_options: a ``collectives.Options``, or None.

    Raises:
        ImportError: see load().
        TypeError: pg_options is something else.
        CollectiveError, RuntimeError, ValueError: the ranks cannot be connected; says why.
    """
    module = load()
    from torch.distributed import PrefixStore, ProcessGroupGloo

    global _shuts_down
    if not _shuts_down:
        # A thread that is still in a call must not run while the interpreter and the libraries end.
        atexit.register(module.shutdown_all)
        _shuts_down = True
    if pg_options is None:
        pg_options = module.Options()
    elif not isinstance(pg_options, module.Options):
        raise TypeError(f"pg_options must be collectives.Options, not {type(pg_options).__name__}")
    rank, size, timeout = options.group_rank, options.group_size, options.timeout
    backend = module.Backend(rank, size, timeout.total_seconds(), pg_options)
    # Groups of other members may have the same name: where each rank makes only those that it is in.
    members = ",".join(map(str, options.global_ranks_in_group))
    store = PrefixStore(members, options.store) if members else options.store
    meeting = StoreRendezvous(store, rank, size)
    announcements = meeting.exchange(backend.announcement, timeout.total_seconds())
    backend.connect(b"".join(announcements))
    observer = backend.observer()
    flight_record.register(
        observer,
        rank,
        announcements,
        ranks=options.global_ranks_in_group or None,
        description=f"process group {options.group_id}",
        read=lambda group, of: group.flight_record(of),
    )

    def gloo(observer: Any = observer) -> Any:  # lives as long as the backend, and the observer with it
        if pg_options.fallback == "log":
            _log_once("sparse tensors are reduced by Gloo")
        return ProcessGroupGloo(PrefixStore("fallback", store), rank, size, timeout)

    backend.set_fallback(gloo)
    return backend


@functools.cache
def _log_once(reason: str) -> None:
    logging.getLogger("collectives").info("fallback: %s", reason)
