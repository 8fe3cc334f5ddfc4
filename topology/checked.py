"""Values out of JSON that somebody else may have written: taken only if they are what they have to be."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from collectives.topology.graph import TopologyError

_T = TypeVar("_T")


class Checked:
    """Takes values out of JSON; where one is not what it has to be, a :class:`TopologyError` says which."""

    def __init__(self, source: str) -> None:
        self.source = source

    def fault(self, where: str, expected: str) -> TopologyError:
        """The error to raise for a value."""
        return TopologyError(f"{where}: expected {expected}", self.source)

    def items(self, value: object, where: str) -> Sequence[Any]:
        """A list."""
        if not isinstance(value, list):
            raise self.fault(where, "a list")
        return value

    def table(self, value: object, where: str) -> Mapping[str, Any]:
        """An object."""
        if not isinstance(value, dict):
            raise self.fault(where, "an object")
        return value

    def text(self, value: object, where: str) -> str:
        """A text."""
        if not isinstance(value, str):
            raise self.fault(where, "a text")
        return value

    def whole(self, value: object, where: str) -> int:
        """A whole number."""
        if not isinstance(value, int) or isinstance(value, bool) or not -(1 << 62) < value < 1 << 62:
            raise self.fault(where, "a whole number")
        return value

    def size(self, value: object, where: str) -> int:
        """A whole number of 0 or more."""
        if self.whole(value, where) < 0:
            raise self.fault(where, "0 or more")
        return self.whole(value, where)

    def amount(self, value: object, where: str) -> float:
        """A finite number of 0 or more."""
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e18:
            raise self.fault(where, "a number of 0 or more")
        return float(value)

    def flag(self, value: object, where: str) -> bool:
        """True or false."""
        if not isinstance(value, bool):
            raise self.fault(where, "true or false")
        return value

    def maybe(self, value: object, where: str, read: Callable[[object, str], _T]) -> _T | None:
        """None, or what `read` makes of the value."""
        return None if value is None else read(value, where)

    def cores(self, value: object, where: str) -> tuple[int, ...]:
        """A list of whole numbers of 0 or more."""
        return tuple(self.size(core, where) for core in self.items(value, where))

    def record(
        self, value: object, where: str, readers: Mapping[str, Callable[[object, str], Any]]
    ) -> dict[str, Any]:
        """An object's fields by their readers; None and absent fields are the reader's caller's default."""
        data = self.table(value, where)
        for key in data:
            if key not in readers:
                raise self.fault(f"{where}.{key}", f"one of {', '.join(readers)}")
        return {key: self.maybe(data[key], f"{where}.{key}", readers[key]) for key in data}
