"""``python -m collectives``: the report of a bug report."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from collectives import __main__ as report_module

CLEAN = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith(("OMPI_C", "PMI", "COLLECTIVES_"))
}


def run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "collectives", *arguments]
    return subprocess.run(command, env=CLEAN | environ, capture_output=True, text=True, timeout=60)


def test_json() -> None:
    done = run("--json", COLLECTIVES_TIMEOUT="20")
    assert done.returncode == 0, done.stdout + done.stderr
    data = json.loads(done.stdout)
    assert data["transports"] == {"shared_memory": "works"}
    assert data["versions"]["python"] == sys.version.split()[0]
    assert data["versions"]["numpy"]
    assert data["environment"] == {"COLLECTIVES_TIMEOUT": "20"}
    assert data["launch"]["launcher"] == "none"
    assert data["devices"] == ["cpu"]
    assert data["cpu"]["cores_usable"] > 0
    assert data["instruction_set"] in ("baseline", "x86-64-v3", "x86-64-v4", "neon")


def test_text_names_everything() -> None:
    done = run()
    assert done.returncode == 0, done.stdout + done.stderr
    for word in ("versions", "kernel", "model", "instruction set", "shared memory", "works", "launcher"):
        assert word in done.stdout


def test_a_rank_of_a_job_reports_without_waiting_for_the_others() -> None:
    done = run("--json", RANK="1", WORLD_SIZE="64", MASTER_ADDR="127.0.0.1", MASTER_PORT="1")
    data = json.loads(done.stdout)
    assert data["transports"] == {"shared_memory": "works"}
    assert (data["launch"]["rank"], data["launch"]["world_size"]) == (1, 64)


def test_contradictory_launcher_is_reported() -> None:
    assert json.loads(run("--json", RANK="9", WORLD_SIZE="2").stdout)["launch"] == {
        "launcher": "contradictory: RANK and WORLD_SIZE says rank 9 of 2: no such rank"
    }


def test_a_failure_is_shown_and_sets_the_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise OSError("no memfd")

    monkeypatch.setattr("collectives.Communicator", broken)
    assert report_module.main([]) == 1
    assert "OSError: no memfd" in capsys.readouterr().out
