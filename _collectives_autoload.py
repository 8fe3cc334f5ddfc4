"""Makes the torch.distributed backend "collectives" known to torch.

`import torch` calls :func:`register` through the entry point ``torch.backends``. A module of its own and
outside the package, because an exception on this way would break `import torch` itself, and because whoever
imports torch for another purpose should not pay for the library: it is imported when the first group is made.
"""

from __future__ import annotations

import warnings
from typing import Any


def register() -> None:
    """Register the backend; idempotent. Whatever goes wrong becomes one warning, never an exception."""
    try:
        from torch.distributed import is_available

        if is_available():
            from torch.distributed.distributed_c10d import Backend

            # A list: up to torch 2.13 a string would be taken apart into letters.
            Backend.register_backend("collectives", _create, extended_api=True, devices=["cpu", "cuda"])
    except Exception as error:
        warnings.warn(
            f'the torch.distributed backend "collectives" is not available: {type(error).__name__}: {error}',
            stacklevel=2,
        )


def _create(options: Any, pg_options: Any) -> Any:
    from collectives import torch_backend

    return torch_backend.create(options, pg_options)
