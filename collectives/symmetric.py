"""Symmetric memory: arrays that the peers' processes read in place, so that calls stage nothing."""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Iterable
from typing import Any

import numpy as np

from collectives import _native


def empty(shape: int | Iterable[int], dtype: Any = "float32") -> Any:
    """An uninitialised, packed array in symmetric memory.

    Every communicator of this process can pass it, and any view of it, to its peers without staging: calls of
    32 KB and more (counted on the larger side) in which all ranks' arrays are symmetric run the algorithm
    ``"symmetric"``. Which arrays those are: input and output of all_reduce, the input of reduce_scatter and
    all_gather, the root's of broadcast. Ranks need not allocate alike, or together.

    The memory goes back for reuse when the array and all its views are gone. A forked child shares it with its
    parent: what one writes, the other sees.

    Args:
        shape: dimensions.
        dtype: a torch dtype makes a torch tensor. Anything else makes a NumPy array: a NumPy dtype, one of
            ml_dtypes, or a name such as ``"float32"`` or ``"bfloat16"`` (bfloat16 and float8 by name need
            ml_dtypes).

    Raises:
        TypeError: the element type is none that the collectives know, or the shape no integers.
        ValueError: a negative dimension.
        MemoryError: a process has at most 64 GB, and none where its address space is limited (ulimit -v).
    """
    try:
        sizes = (operator.index(shape),)  # type: ignore[arg-type]
    except TypeError:
        sizes = tuple(operator.index(size) for size in shape)  # type: ignore[union-attr]
    if any(size < 0 for size in sizes):
        raise ValueError(f"shape {sizes}: a dimension is negative")
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(dtype, torch.dtype):
        _check(str(dtype).removeprefix("torch."))
        raw = _native.allocate(math.prod(sizes) * dtype.itemsize)
        return torch.from_numpy(raw).view(dtype).view(sizes)
    element = _numpy_dtype(dtype)
    _check(element.name)
    if not element.isnative:
        raise TypeError(f"dtype {element!r}: the byte order is not this machine's")
    return _native.allocate(math.prod(sizes) * element.itemsize).view(element).reshape(sizes)


def _check(name: str) -> None:
    if name not in _native.dtypes():
        raise TypeError(f"dtype {name} is not known; known are {', '.join(_native.dtypes())}")


def _numpy_dtype(dtype: Any) -> np.dtype[Any]:
    if isinstance(dtype, str) and dtype.startswith(("bfloat", "float8")):
        import ml_dtypes

        dtype = getattr(ml_dtypes, dtype, dtype)
    return np.dtype(dtype)
