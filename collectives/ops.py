"""The collectives on torch tensors as operators: beside ``torch.distributed``'s own, over any of its groups.

They run on the caller's thread and are done when they return; ``torch.compile`` traces them without a graph
break. All ranks of the group make the same calls in the same order, with equal shapes and dtypes unless it
says otherwise. Functional ones leave their input alone, return a new contiguous tensor, and have a gradient:
that of the sum of all ranks' losses, which is again a collective, so every rank takes it.

Everywhere, `x` is a tensor of a device and dtype that the group's backend serves, with any strides; `group`
is a process group, the name of one, or None for the world; `op` is "sum", "avg", "product", "min", "max",
"band", "bor" or "bxor". Wrong arguments raise ValueError or RuntimeError, an unknown group RuntimeError; what
else is raised is the backend's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch._higher_order_ops.effects import _EffectType, _register_effectful_op

from collectives import torch_backend

torch_backend.load()  # registers torch.ops.collectives
_ops = torch.ops.collectives
Group = dist.ProcessGroup | str | None

__all__ = [
    "all_gather",
    "all_reduce",
    "all_reduce_",
    "all_to_all",
    "broadcast",
    "broadcast_",
    "reduce",
    "reduce_scatter",
]

# Compiled code must call them all, in the order of the program: also those whose result this rank does not
# use, and also where another rank's program differs in what it does between them. That is to be had for
# functional operators only; hence _overwritten.
for _name in ("all_gather", "all_reduce", "all_to_all", "broadcast", "reduce", "reduce_scatter"):
    _register_effectful_op(getattr(_ops, _name).default, _EffectType.ORDERED)


def _name_of(group: Group) -> str:
    if group is None:
        group = dist.distributed_c10d._get_default_group()
    return group if isinstance(group, str) else group.group_name


def _size_of(group: Group) -> int:
    if isinstance(group, dist.ProcessGroup):
        return group.size()
    name: Any = _name_of(group)  # torch has a type of its own for it
    return int(dist.distributed_c10d._get_group_size_by_name(name))


def _overwritten(x: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    if torch.is_grad_enabled() and x.requires_grad:
        raise RuntimeError("x is written, but requires a gradient: call the function without underscore")
    return x.copy_(result)


def all_reduce(x: torch.Tensor, op: str = "sum", group: Group = None) -> torch.Tensor:
    """Reduce over all ranks.

    Returns:
        A tensor of x's shape and dtype, equal on all ranks. Sum and avg have a gradient.
    """
    result: torch.Tensor = _ops.all_reduce.default(x, op, _name_of(group))
    return result


def all_reduce_(x: torch.Tensor, op: str = "sum", group: Group = None) -> torch.Tensor:
    """Reduce over all ranks into `x`, which must not require a gradient, and return it."""
    if torch.compiler.is_compiling():
        return _overwritten(x, all_reduce(x.detach(), op, group))
    _ops.all_reduce_.default(x, op, _name_of(group))
    return x


def all_gather(x: torch.Tensor, group: Group = None) -> torch.Tensor:
    """Concatenate every rank's `x` along dimension 0.

    Returns:
        A tensor of shape ``[W * x.shape[0], *x.shape[1:]]``, or ``[W]`` where x has no dimension.
    """
    result: torch.Tensor = _ops.all_gather.default(x, _size_of(group), _name_of(group))
    return result


def reduce_scatter(x: torch.Tensor, op: str = "sum", group: Group = None) -> torch.Tensor:
    """Reduce over all ranks; rank r gets the r-th of W equal parts along dimension 0.

    Returns:
        A tensor of shape ``[x.shape[0] / W, *x.shape[1:]]``. Sum and avg have a gradient.
    """
    result: torch.Tensor = _ops.reduce_scatter.default(x, op, _size_of(group), _name_of(group))
    return result


def all_to_all(
    x: torch.Tensor,
    output_splits: Sequence[int] | None = None,
    input_splits: Sequence[int] | None = None,
    group: Group = None,
) -> torch.Tensor:
    """Send the r-th part of `x` along dimension 0 to rank r, and concatenate what comes.

    Args:
        x: parts of equal size, or of the rows that input_splits says. Shapes may differ in dimension 0.
        output_splits: rows that come from each rank; None for equal parts of as many rows as x has.
        input_splits: rows that go to each rank; None for equal parts.
        group: see above.

    Returns:
        A tensor of shape ``[sum(output_splits), *x.shape[1:]]``.
    """
    result: torch.Tensor = _ops.all_to_all.default(x, output_splits, input_splits, _name_of(group))
    return result


def reduce(x: torch.Tensor, root: int = 0, op: str = "sum", group: Group = None) -> torch.Tensor:
    """Reduce over all ranks; the rank `root` of the group gets the result, the others zeros.

    Returns:
        A tensor of x's shape and dtype. Sum has a gradient, that of the root's result.
    """
    result: torch.Tensor = _ops.reduce.default(x, op, root, _name_of(group))
    return result


def broadcast(x: torch.Tensor, root: int = 0, group: Group = None) -> torch.Tensor:
    """Copy the `x` of the rank `root` of the group to everybody.

    Returns:
        A tensor of x's shape and dtype. The gradient goes to the root's x; that of the others is zero.
    """
    result: torch.Tensor = _ops.broadcast.default(x, root, _name_of(group))
    return result


def broadcast_(x: torch.Tensor, root: int = 0, group: Group = None) -> torch.Tensor:
    """Copy the root's `x` into everybody's, which must not require a gradient, and return it."""
    if torch.compiler.is_compiling():
        return _overwritten(x, broadcast(x.detach(), root, group))
    _ops.broadcast_.default(x, root, _name_of(group))
    return x
