"""PyTorch's own DistributedTest suite, run against any CPU backend and judged by what Gloo passes.

    python tests/torch_suite.py --backend gloo --world-size 3 --json gloo.json
    python tests/torch_suite.py --import collectives --backend collectives --world-size 3 test_send_recv ...
    python tests/torch_suite.py --import collectives --backend collectives --world-size 3 --conformance
    python tests/torch_suite.py --record tests/torch_suite_gloo.json

The suite ships in torch's wheel. It decides by the backend's name, while its module is imported, which tests
exist, and many are Gloo's alone. So it is imported under Gloo's name, which grants every backend what Gloo is
granted, and the name is set to the real one afterwards, before anything runs; it still equals Gloo's where a
test compares it.

Each test gets new processes, forked from a server that has imported torch and the suite, and a time limit.
`--conformance` runs what Gloo passes (the record, if it was made with this torch, else Gloo runs first) and
fails on each test that does not pass, and on each exempt one that passes after all.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import io
import json
import logging
import multiprocessing
import os
import sys
import tempfile
import time
import unittest
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
RECORD = HERE / "torch_suite_gloo.json"
EXEMPT = HERE / "torch_suite_exempt.json"
SUITE = "torch.testing._internal.distributed.distributed_test"
WORLDS = (3, 4)
# What the server process and, through it, every rank takes from its environment.
ENVIRONMENT = {"backend": "BACKEND", "world": "WORLD_SIZE", "module": "TORCH_SUITE_IMPORT"}


class Result(NamedTuple):
    state: str  # pass, fail or skip
    reason: str = ""
    seconds: float = 0.0


class Name(str):
    """A backend's name that also passes for Gloo's: some tests look at it while they run."""

    def __eq__(self, other: object) -> bool:
        return other == "gloo" or str.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash("gloo")  # to be found in sets of names


def load(backend: str, module: str) -> Any:
    """The suite's module, imported under Gloo's name and then given the backend's."""
    if module:
        importlib.import_module(module)
    os.environ["BACKEND"] = "gloo"
    os.environ.setdefault("TEMP_DIR", tempfile.gettempdir())
    suite = importlib.import_module(SUITE)
    os.environ["BACKEND"] = backend
    suite.BACKEND = Name(backend)
    return suite


def environment() -> dict[str, str]:
    return {name: os.environ.get(variable, "") for name, variable in ENVIRONMENT.items()}


def rank_main(temporary: str, run: Any, *args: Any, **kwargs: Any) -> None:
    """One rank of one test; torch's ranks find the test's folder in their environment."""
    import torch

    os.environ["TEMP_DIR"] = temporary
    log = os.open(os.path.join(temporary, f"stderr-{args[0]}"), os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    torch.set_num_threads(1)
    run(*args, **kwargs)


@functools.cache
def suite_class() -> type[unittest.TestCase]:
    """The suite as one test case whose ranks come from the fork server."""
    suite = load(os.environ["BACKEND"], os.environ.get("TORCH_SUITE_IMPORT", ""))
    server = multiprocessing.get_context("forkserver")

    class TorchSuite(suite.TestDistBackend, suite.DistributedTest._DistTestBase):  # type: ignore[misc,name-defined]
        def __reduce__(self) -> Any:
            return suite_class, ()

        def setUp(self) -> None:
            super().setUp()

            def process(target: Any, name: str, args: Any, kwargs: Any) -> Any:
                folder = os.environ["TEMP_DIR"]
                return server.Process(target=rank_main, name=name, args=(folder, start, *args), kwargs=kwargs)

            self._start_processes(process)

        def tearDown(self) -> None:
            processes = list(self.processes)
            # What the ranks printed is worth reading only where one died; the folder goes with super().
            logs = sorted(Path(os.environ["TEMP_DIR"]).glob("stderr-*"))
            self.log = "".join(f"{log.name}:\n{log.read_text(errors='replace')[-1500:]}\n" for log in logs)
            super().tearDown()
            for process in processes:
                process.join(2)
                process.kill()
                process.join()

    return TorchSuite


def start(*args: Any, **kwargs: Any) -> None:
    """The ranks' side: a function of this module, because a class made in a function cannot be pickled."""
    suite_class()._run(*args, **kwargs)  # type: ignore[attr-defined]


def prepare(backend: str, world: int, module: str, limit: int) -> type[unittest.TestCase]:
    values = {"backend": backend, "world": str(world), "module": module}
    os.environ.update({ENVIRONMENT[name]: value for name, value in values.items()})
    os.environ["DISTRIBUTED_TESTS_DEFAULT_TIMEOUT"] = str(limit)
    path = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), *([path] if path else [])])
    logging.disable(logging.INFO)
    multiprocessing.set_forkserver_preload(["torch_suite_preload"])
    return suite_class()


def names(cls: type[unittest.TestCase]) -> list[str]:
    """Every test that can concern a CPU backend."""
    found = (name for name in dir(cls) if name.startswith("test_"))
    return sorted(name for name in found if not {"cuda", "nccl"} & set(name.lower().split("_")))


def run_one(cls: type[unittest.TestCase], name: str) -> Result:
    begin = time.monotonic()
    quiet = io.StringIO()
    test = cls(name)
    with contextlib.redirect_stdout(quiet):
        result = unittest.TextTestRunner(stream=quiet, verbosity=0).run(test)
    seconds = round(time.monotonic() - begin, 1)
    if bad := result.failures + result.errors:
        return Result("fail", f"{getattr(test, 'log', '')}\n{bad[0][1][-2000:]}", seconds)
    if result.skipped:
        return Result("skip", result.skipped[0][1], seconds)
    return Result("pass", "", seconds)


def run(cls: type[unittest.TestCase], wanted: Iterable[str]) -> dict[str, Result]:
    results = {}
    for name in wanted:
        results[name] = result = run_one(cls, name)
        last = (result.reason.strip().splitlines() or [""])[-1]
        print(f"{result.state:5s} {result.seconds:6.1f} s  {name}  {last[:140]}", flush=True)
    return results


def exempt() -> dict[str, str]:
    """Tests that Gloo passes and another backend need not, each with the reason."""
    return json.loads(EXEMPT.read_text())


def gloo_passes(world: int) -> list[str]:
    """What Gloo passes with this torch: from the record, or by running it."""
    import torch

    record = json.loads(RECORD.read_text())
    if record["torch"] == torch.__version__.split("+")[0]:
        return record["passes"][str(world)]
    print(f"the record is of torch {record['torch']}: Gloo runs first", flush=True)
    return passes_of_gloo(world)


def passes_of_gloo(world: int) -> list[str]:
    """Runs Gloo in a process of its own: the suite's module takes one name only."""
    import subprocess

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "gloo.json"
        command = [sys.executable, __file__, "--backend", "gloo", "--world-size", str(world), "--json", path]
        subprocess.run(command, check=False)
        results = json.loads(path.read_text())["results"]
    return [name for name, result in results.items() if result["state"] == "pass"]


def record(path: str) -> None:
    import torch

    passes = {str(world): passes_of_gloo(world) for world in WORLDS}
    content = {"torch": torch.__version__.split("+")[0], "passes": passes}
    Path(path).write_text(json.dumps(content, indent=1) + "\n")


def verdict(results: dict[str, Result], exemptions: dict[str, str]) -> list[str]:
    """What is wrong with results of tests that Gloo passes."""
    wrong = []
    for name, result in results.items():
        if name in exemptions and result.state == "pass":
            wrong.append(f"{name} passes: take it off the list of exempt tests")
        elif name not in exemptions and result.state != "pass":
            wrong.append(f"{name}: {result.state}: {result.reason.strip()}")
    return wrong


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tests", nargs="*", help="names of tests (default: all)")
    parser.add_argument("--backend", default="collectives")
    parser.add_argument(
        "--import", dest="module", default="", help="a module whose import registers the backend"
    )
    parser.add_argument("--world-size", type=int, default=3)
    parser.add_argument("--limit", type=int, default=120, help="seconds for one test")
    parser.add_argument("--json", help="write the results to this file")
    parser.add_argument("--conformance", action="store_true", help="run and judge what Gloo passes")
    parser.add_argument("--record", help="run Gloo at each world size and write what it passes to this file")
    args = parser.parse_args(arguments)
    if args.record:
        record(args.record)
        return 0
    expected = gloo_passes(args.world_size) if args.conformance else None
    cls = prepare(args.backend, args.world_size, args.module, args.limit)
    results = run(cls, args.tests or expected or names(cls))
    if args.json:
        import torch

        content = {"torch": torch.__version__, "backend": args.backend, "world_size": args.world_size}
        content["results"] = {name: result._asdict() for name, result in results.items()}
        Path(args.json).write_text(json.dumps(content, indent=1) + "\n")
    count = {state: sum(r.state == state for r in results.values()) for state in ("pass", "fail", "skip")}
    print(f"{args.backend} at {args.world_size}: " + ", ".join(f"{n} {state}" for state, n in count.items()))
    if not args.conformance:
        return 1 if count["fail"] else 0
    wrong = verdict(results, exempt())
    print("\n".join(wrong) or "conforms: every test that Gloo passes, but for the exempt ones, passes")
    return 1 if wrong else 0


if __name__ == "__main__":
    # Under its own name, so that the ranks find what they are sent.
    import torch_suite

    sys.exit(torch_suite.main())
