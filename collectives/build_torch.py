"""``python -m collectives build-torch``: compiles ``collectives._torch`` for the torch that is installed.

For those whose torch is not the one that collectives was built for, or came later. The sources are part of
the package; the result goes to a folder of the user, where :func:`collectives.torch_backend.load` finds it.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from collectives import environment, torch_backend
from collectives.topology import cpu

_SUFFIX = str(sysconfig.get_config_var("EXT_SUFFIX"))


def source_folder() -> Path:
    """The folder that holds ``torch/*.cpp``: inside the package, or in the tree of an editable install."""
    package = Path(__file__).resolve().parent
    return next(
        folder for folder in (package / "csrc", package.parent / "csrc") if (folder / "torch").is_dir()
    )


def module_path(torch_version: str) -> Path:
    """Where the module for this torch is, or would be: one per version, Python and state of the sources."""
    folder = source_folder()
    digest = hashlib.sha256()
    patterns = ("torch/*.cpp", "torch/*.h", "core/*.h", "native/table.h")
    for file in sorted(file for pattern in patterns for file in folder.glob(pattern)):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    key = f"torch-{torch_version}-{digest.hexdigest()[:16]}"
    return environment.cache_folder() / key / f"_torch{_SUFFIX}"


def build() -> Path:
    """Compile the module for the installed torch unless that has been done, and return its path.

    Any number of processes may call this at once: one compiles, the others wait, and nobody sees half a file.

    Raises:
        ImportError: there is no torch, or none that is supported.
        RuntimeError: there is no compiler, or it failed; the message has its output.
    """
    import torch

    torch_backend.check_supported(torch.__version__)
    path = module_path(torch.__version__)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with open(path.parent / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
                os.replace(_compile(Path(scratch)), path)
    return path


def _compile(scratch: Path) -> Path:
    import torch

    compiler = shlex.split(os.environ.get("CXX", "")) or [shutil.which("g++") or shutil.which("c++") or ""]
    if not shutil.which(compiler[0]):
        raise RuntimeError("no C++ compiler found: install g++ 11 or later, or name one in CXX")
    python = sysconfig.get_paths()["include"]
    if not Path(python, "Python.h").exists():
        raise RuntimeError(f"Python's headers are not in {python}: install them (Debian: python3-dev)")

    home = Path(torch.__file__).parent
    folder = source_folder()
    # The same as csrc/torch/module.cmake has.
    flags = ["-std=c++20", "-O3", "-DNDEBUG", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off"]
    flags += [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}", f"-I{folder}"]
    for system in (home / "include", home / "include/torch/csrc/api/include", python):
        flags += ["-isystem", str(system)]

    def compile_one(source: Path) -> str:
        result = str(scratch / f"{source.stem}.o")
        _run([*compiler, *flags, "-c", str(source), "-o", result])
        return result

    with ThreadPoolExecutor(max(1, int(cpu.usable_cores()))) as threads:
        objects = list(threads.map(compile_one, sorted(folder.glob("torch/*.cpp"))))
    module = scratch / f"_torch{_SUFFIX}"
    libraries = [f"-L{home / 'lib'}", "-ltorch_python", "-ltorch_cpu", "-lc10"]
    _run([*compiler, "-shared", "-pthread", *objects, *libraries, "-o", str(module)])
    return module


def _run(command: list[str]) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{shlex.join(command)}\nfailed:\n{done.stdout[-4000:]}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Build and say where the result is; the status is 0 if there is a module for the installed torch."""
    argparse.ArgumentParser(prog="python -m collectives build-torch", description=__doc__).parse_args(
        arguments
    )
    try:
        import torch

        if torch_backend.installed_fits(torch.__version__):
            print(f"the installed collectives._torch is for torch {torch.__version__}: nothing to build")
        else:
            if not module_path(torch.__version__).exists():
                print(f"compiling collectives._torch for torch {torch.__version__}: minutes ...", flush=True)
            print(build())
    except (ImportError, RuntimeError) as error:
        print(f"build-torch: {error}", file=sys.stderr)
        return 1
    return 0
