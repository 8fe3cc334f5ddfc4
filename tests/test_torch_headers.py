"""The torch adapter compiles against the headers of every torch that it supports.

The wheels come by pip, those for macOS because they are small: the headers are the same but for kernels.
Only their include folder is kept, in build/torch-headers.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = sorted(path.name for path in (ROOT / "csrc/torch").glob("*.cpp"))
VERSIONS = ["2.11.0", "2.12.0", "2.13.0", "2.14.0", "2.15.0"]

pytestmark = pytest.mark.nightly  # 80 MB a version, and a minute of compiling


def include_folder(version: str) -> Path:
    """The headers of this torch, fetched at the first call; skips where there is no such wheel to be had."""
    folder = ROOT / "build/torch-headers" / version
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            wanted = ["--platform", "macosx_11_0_arm64", "--platform", "macosx_14_0_arm64"]
            wanted += ["--python-version", "3.11", "--only-binary", ":all:", "--no-deps"]
            command = [sys.executable, "-m", "pip", "download", *wanted, "-d", scratch, f"torch=={version}"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=600)
            wheels = list(Path(scratch).glob("torch-*.whl"))
            if done.returncode != 0 or not wheels:
                pytest.skip(f"pip has no torch {version} here: {done.stderr.strip()[-300:]}")
            with zipfile.ZipFile(wheels[0]) as archive:
                headers = [name for name in archive.namelist() if name.startswith("torch/include/")]
                archive.extractall(Path(scratch) / "headers", headers)
            (Path(scratch) / "headers").rename(folder)
    return folder / "torch/include"


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("source", SOURCES)
def test_compiles(version: str, source: str) -> None:
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    include = include_folder(version)
    systems = (include, include / "torch/csrc/api/include", Path(sysconfig.get_paths()["include"]))
    command = [compiler, "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", f"-I{ROOT / 'csrc'}"]
    command += [option for system in systems for option in ("-isystem", str(system))]
    done = subprocess.run([*command, str(ROOT / "csrc/torch" / source)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:4000]
