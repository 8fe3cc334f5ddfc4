"""New arrays beside the caller's, made by the caller's own library."""

from __future__ import annotations

from typing import Any

import numpy as np


def empty_like(x: Any, shape: tuple[int, ...]) -> Any:
    """An uninitialised, packed array of ``shape`` with the dtype of ``x``.

    torch tensors (and whatever else has ``new_empty``) make a tensor; NumPy arrays and plain buffers, and
    objects of which only ``__dlpack__`` is known, a NumPy array.

    Raises:
        TypeError: the element type of ``x`` is not NumPy's.
    """
    if hasattr(x, "new_empty"):
        return x.new_empty(shape)
    if isinstance(x, np.ndarray):
        return np.empty(shape, dtype=x.dtype)
    try:
        view = memoryview(x)
    except TypeError:
        pass
    else:
        return np.empty(shape, dtype=np.asarray(view).dtype)
    try:
        return np.empty(shape, dtype=np.from_dlpack(x).dtype)
    except (BufferError, RuntimeError, AttributeError) as error:
        raise TypeError(f"cannot make an output beside a {type(x).__name__}: pass out=") from error
