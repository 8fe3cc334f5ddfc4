"""The suite must fail where the library is wrong: it is run against a core that rounds at each addition."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def build_folder() -> Path:
    """The folder in which the module for this Python was built, by an editable install."""
    if shutil.which("cmake") is None:
        pytest.skip("cmake is not installed")
    name = "_native" + sysconfig.get_config_var("EXT_SUFFIX")
    folders = [
        file.parent
        for file in HERE.parent.glob(f"build/*/{name}")
        if (file.parent / "CMakeCache.txt").exists()
    ]
    if not folders:
        pytest.skip("the library was not built in this tree")
    return max(folders, key=lambda folder: (folder / name).stat().st_mtime)


def failures(native: Path | None) -> set[tuple[str, str]]:
    """(world, dtype) of the failing tests of operators and algorithms, with the library's core or another."""
    environment = {**os.environ, **({"TEST_NATIVE_MODULE": str(native)} if native else {})}
    command = [sys.executable, "-m", "pytest", "-q", "-rfEp", "--color=no", "-p", "no:cacheprovider"]
    command += ["-k", "(world2 or world3) and (float or int32)"]
    done = subprocess.run(
        [*command, str(HERE / "test_conformance.py") + "::test_every_operator_and_algorithm"],
        capture_output=True,
        text=True,
        cwd=HERE.parent,
        timeout=300,
        env=environment,
    )
    verdicts = re.findall(r"^(PASSED|FAILED|ERROR) .*\[(world\d)-\w+-(\w+)\]", done.stdout, re.MULTILINE)
    # Two worlds and three collectives; six floating types, int32 and uint32.
    assert len(verdicts) == 2 * 3 * 8, done.stdout + done.stderr
    return {(world, dtype) for verdict, world, dtype in verdicts if verdict != "PASSED"}


def test_the_suite_passes_with_the_ordinary_core() -> None:
    assert failures(None) == set()


def test_the_suite_fails_if_each_addition_is_rounded() -> None:
    folder = build_folder()
    built = subprocess.run(
        ["cmake", "--build", str(folder), "--target", "negative_round_each_addition"],
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    (module,) = (folder / "negative" / "round_each_addition").glob("_native*")
    # The wide types accumulate in themselves, so that nothing changes. Of two ranks only the average can
    # tell, where the sum overflows the type but not fp32; bfloat16, which has the range of fp32, shows the
    # fault from three ranks on.
    two = {("world2", dtype) for dtype in ("float16", "float8_e4m3fn", "float8_e5m2")}
    three = {("world3", dtype) for dtype in ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")}
    assert failures(module) == two | three
