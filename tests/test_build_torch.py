"""`python -m collectives build-torch`, its cache, and what is said where no module fits the torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from collectives import build_torch, environment, torch_backend


def installed(version: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "collectives._torch", raising=False)
    monkeypatch.setattr(torch_backend, "built_for", lambda: version)


def test_the_cache_folder() -> None:
    assert environment.cache_folder({"COLLECTIVES_CACHE_DIR": "/c"}) == Path("/c")
    assert environment.cache_folder({"XDG_CACHE_HOME": "/x"}) == Path("/x/collectives")
    assert environment.cache_folder({}) == Path.home() / ".cache/collectives"


def test_the_key_names_torch_python_and_the_sources(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COLLECTIVES_CACHE_DIR", str(tmp_path / "cache"))
    for file, text in {"torch/a.cpp": "1", "torch/b.h": "2", "core/c.h": "3", "native/table.h": "4"}.items():
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(text)
    monkeypatch.setattr(build_torch, "source_folder", lambda: tmp_path)
    first = build_torch.module_path("2.13.0+cpu")
    assert first == build_torch.module_path("2.13.0+cpu")
    assert first != build_torch.module_path("2.14.0+cpu")
    assert first.name == f"_torch{build_torch._SUFFIX}"
    for file in ("torch/a.cpp", "core/c.h", "native/table.h"):
        (tmp_path / file).write_text("changed")
        changed = build_torch.module_path("2.13.0+cpu")
        assert changed != first
        first = changed


@pytest.mark.parametrize("version", ["2.10.2", "2.16.0", "3.0.0", "1.13.1"])
def test_other_versions_of_torch_are_refused(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    installed("2.13.0", monkeypatch)
    monkeypatch.setattr(torch, "__version__", version)
    with pytest.raises(ImportError, match=rf"torch {version} is installed, .* needs torch 2\.11 to 2\.15"):
        torch_backend.load()


@pytest.mark.parametrize("version", ["2.11.0", None])
def test_a_module_for_another_torch_is_not_loaded(
    version: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    installed(version, monkeypatch)
    monkeypatch.setenv("COLLECTIVES_CACHE_DIR", str(tmp_path))
    had = "was built for torch 2.11.0" if version else "was not built"
    with pytest.raises(
        ImportError, match=f"{had}, and torch .* is running: run `python -m collectives build"
    ):
        torch_backend.load()
    assert "collectives._torch" not in sys.modules


@pytest.mark.parametrize(
    ("built", "running", "fits"),
    [("2.13.0", "2.13.1+cu130", True), ("2.13.0", "2.14.0", False), ("2.1.3", "2.13.0", False)],
)
def test_what_fits(built: str, running: str, fits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(built, monkeypatch)
    assert torch_backend.installed_fits(running) is fits


def test_what_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert torch_backend.minor(torch_backend.built_for() or "") == torch_backend.minor(torch.__version__)
    monkeypatch.setitem(sys.modules, "collectives._torch_built_for", None)
    assert torch_backend.built_for() is None


def test_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COLLECTIVES_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(RuntimeError, match=r"install g\+\+ 11 or later, or name one in CXX"):
        build_torch.build()
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(RuntimeError, match=r"(?s)false .*torch/.*\.cpp.*failed"):
        build_torch.build()
    assert not list(tmp_path.rglob("*.so"))


def test_nothing_to_build() -> None:
    command = [sys.executable, "-m", "collectives", "build-torch"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "nothing to build" in done.stdout, done.stdout + done.stderr


USE = """
import sys
from collectives import torch_backend
torch_backend.built_for = lambda: "2.1.0"
import torch, torch.distributed as dist
dist.init_process_group("collectives", store=dist.HashStore(), rank=0, world_size=1)
x = torch.ones(3)
dist.all_reduce(x)
import collectives
assert collectives.all_reduce(x).equal(torch.ones(3))
dist.destroy_process_group()
print(sys.modules["collectives._torch"].__file__)
"""


@pytest.mark.nightly  # compiles for minutes
def test_two_processes_build_once_and_the_result_is_used(tmp_path: Path) -> None:
    environ = os.environ | {"COLLECTIVES_CACHE_DIR": str(tmp_path)}
    build = [sys.executable, "-c", "from collectives import build_torch; print(build_torch.build())"]
    both = [subprocess.Popen(build, env=environ, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    paths = {process.communicate(timeout=1800)[0].strip() for process in both}
    assert len(paths) == 1 and [str(p) for p in tmp_path.rglob("*.so")] == list(paths)
    done = subprocess.run(
        [sys.executable, "-c", USE], env=environ, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0 and done.stdout.strip() in paths, done.stdout + done.stderr
