from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

T = TypeVar("T")

__version__: str

def instruction_set() -> str: ...
def table() -> object: ...
def allocate(nbytes: int) -> npt.NDArray[np.uint8]: ...
def dtypes() -> tuple[str, ...]: ...
def heap_usage() -> dict[str, int]: ...
def handle(communicator: Communicator) -> int: ...
def flight_record(communicator: Communicator, rank: int) -> bytes: ...
def vocabulary() -> dict[str, tuple[str, ...]]: ...

class Communicator:
    def __init__(self, rank: int, world_size: int, timeout: float, cache_bytes: int = 0) -> None: ...
    @property
    def announcement(self) -> bytes: ...
    def connect(self, announcements: list[bytes]) -> None: ...
    @property
    def rank(self) -> int: ...
    @property
    def world_size(self) -> int: ...
    @property
    def timeout(self) -> float: ...
    @property
    def healthy(self) -> bool: ...
    @property
    def closed(self) -> bool: ...
    def set_timeout(self, seconds: float) -> None: ...
    @property
    def epoch(self) -> int: ...
    def all_reduce(
        self,
        x: Any,
        out: Any = None,
        op: str = "sum",
        *,
        factor: float | None = None,
        algorithm: str | None = None,
        timeout: float | None = None,
    ) -> Any: ...
    def reduce(
        self,
        x: Any,
        root: int = 0,
        op: str = "sum",
        out: Any = None,
        *,
        factor: float | None = None,
        algorithm: str | None = None,
        timeout: float | None = None,
    ) -> Any: ...
    def all_gather(
        self, x: Any, out: Any = None, *, algorithm: str | None = None, timeout: float | None = None
    ) -> Any: ...
    def gather(
        self,
        x: Any,
        root: int = 0,
        out: Any = None,
        *,
        algorithm: str | None = None,
        timeout: float | None = None,
    ) -> Any: ...
    def reduce_scatter(
        self,
        x: Any,
        out: Any = None,
        op: str = "sum",
        *,
        factor: float | None = None,
        algorithm: str | None = None,
        timeout: float | None = None,
    ) -> Any: ...
    def scatter(
        self,
        x: Any,
        out: Any = None,
        root: int = 0,
        *,
        algorithm: str | None = None,
        timeout: float | None = None,
    ) -> Any: ...
    def all_to_all(
        self,
        x: Any,
        out: Any = None,
        *,
        send_counts: Sequence[int] | None = None,
        recv_counts: Sequence[int] | None = None,
        algorithm: str | None = None,
        timeout: float | None = None,
    ) -> Any: ...
    def broadcast(
        self, x: T, root: int = 0, *, algorithm: str | None = None, timeout: float | None = None
    ) -> T: ...
    def barrier(self, *, timeout: float | None = None) -> None: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...
    def _explain(self, collective: str, nbytes: int, dtype: str) -> dict[str, Any]: ...
    def _last_receipt(self) -> dict[str, Any] | None: ...
