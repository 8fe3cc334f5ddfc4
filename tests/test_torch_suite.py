"""Twenty tests of PyTorch's own suite; `make conformance` runs all that Gloo passes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch_suite
from ranks import LAUNCHERS
from torch_ranks import BACKEND

WORLD = 3
QUICK = [
    "test_Backend_enum_class",
    "test_DistributedDataParallelCPU_grad_is_view",
    "test_accumulate_gradients_no_sync",
    "test_all_gather_coalesced_with_empty",
    "test_all_gather_object_subgroup",
    "test_all_reduce_coalesced_full_group_max",
    "test_all_reduce_sum_complex",
    "test_barrier",
    "test_batch_isend_irecv_gloo",
    "test_broadcast",
    "test_destroy_group",
    "test_gather_checks",
    "test_get_future",
    "test_reduce_full_group_product",
    "test_reduce_sum_twice",
    "test_scatter_complex",
    "test_scatter_object_list",
    "test_send_recv_any_source",
    "test_send_recv_with_tag",
    "test_static_graph_api_cpu",
]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("suite") / "results.json"
    command = [
        sys.executable,
        str(Path(torch_suite.__file__)),
        "--backend",
        BACKEND,
        "--world-size",
        str(WORLD),
    ]
    command += ["--limit", "60", "--json", str(path), *QUICK]
    command += ["--import", BACKEND] if BACKEND == "collectives" else []
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)}
    done = subprocess.run(command, env=inherited, capture_output=True, text=True, timeout=300)
    assert path.exists(), done.stdout + done.stderr
    return json.loads(path.read_text())["results"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", QUICK)
def test_of_pytorch(results: dict[str, Any], name: str) -> None:
    assert results[name]["state"] == "pass", results[name]["reason"]


def test_the_lists_name_tests_that_gloo_passes() -> None:
    record = json.loads(torch_suite.RECORD.read_text())["passes"]
    assert set(record) == {str(world) for world in torch_suite.WORLDS}
    assert set(QUICK) <= set(record[str(WORLD)]) - set(torch_suite.exempt())
    for name, reason in torch_suite.exempt().items():
        assert any(name in passes for passes in record.values()) and len(reason) > 20, name


def test_the_verdict() -> None:
    results = {
        "test_a": torch_suite.Result("pass"),
        "test_b": torch_suite.Result("skip", "it is locked"),
        "test_c": torch_suite.Result("fail", "wrong sum"),
        "test_d": torch_suite.Result("pass"),
    }
    wrong = torch_suite.verdict(results, {"test_b": "locked", "test_d": "was locked"})
    assert [text.split()[0].rstrip(":") for text in wrong] == ["test_c", "test_d"]
    assert "wrong sum" in wrong[0] and "take it off" in wrong[1]
