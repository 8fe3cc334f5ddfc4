"""Who is measured: backends of torch.distributed, the peer Gloo among them."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from collectives import __version__
from collectives.bench.cases import Array, Case, after, before
from collectives.bench.peers import Call, Contender, Ours

ONE_TENSOR = ("all_reduce", "reduce", "broadcast")  # whose functions take one tensor, input and output


class ThroughTorch(Contender):
    """A torch.distributed backend through the functions of `torch.distributed`, one thread per rank.

    Args:
        name: in the table.
        group: the process group.
        checked: False for one that does not do what it is asked to.
    """

    def __init__(self, name: str, group: Any, checked: bool = True) -> None:
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        self.name, self.checked, self._group = name, checked, group
        ours = f"{__version__} through " if name == Ours.name else ""
        self.version = f"{ours}torch {torch.__version__}"
        self._torch, self._dist = torch, dist

    def bind(self, case: Case) -> Call | None:
        """The call on tensors of the same memory; in the one form that torch has, in place or not."""
        dist, group, root = self._dist, self._group, case.root
        if case.in_place != (case.collective in ONE_TENSOR):
            return None
        x, out = self._tensor(case.x, case), self._tensor(case.out, case)
        if case.collective == "sendrecv":
            return self._ring_shift(x, out)
        op = getattr(dist.ReduceOp, case.op.upper())
        is_root, world_size = dist.get_rank(group) == root, dist.get_world_size(group)
        # torch 2.13 renamed these; the old names warn at every call, which costs time.
        all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
        reduce_scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)

        def parts(tensor: Any) -> list[Any] | None:
            return list(tensor.tensor_split(world_size)) if is_root else None

        calls: dict[str, Call] = {
            "all_reduce": partial(dist.all_reduce, x, op=op, group=group),
            "reduce": partial(dist.reduce, x, dst=root, op=op, group=group),
            "all_gather": partial(all_gather, out, x, group=group),
            "gather": partial(dist.gather, x, parts(out), dst=root, group=group),
            "reduce_scatter": partial(reduce_scatter, out, x, op=op, group=group),
            "scatter": partial(dist.scatter, out, parts(x), src=root, group=group),
            "all_to_all": partial(dist.all_to_all_single, out, x, group=group),
            "broadcast": partial(dist.broadcast, x, src=root, group=group),
        }
        return calls[case.collective]

    def _ring_shift(self, x: Any, out: Any) -> Call:
        dist, group = self._dist, self._group
        me, world_size = dist.get_rank(group), dist.get_world_size(group)
        both = [
            dist.P2POp(dist.isend, x, after(me, world_size), group),
            dist.P2POp(dist.irecv, out, before(me, world_size), group),
        ]

        def shift() -> None:
            for work in dist.batch_isend_irecv(both):
                work.wait()

        return shift

    def _tensor(self, array: Array, case: Case) -> Any:
        """The same memory as a tensor, by way of bytes: torch does not know the dtypes of ml_dtypes."""
        return self._torch.from_numpy(array.view(np.uint8)).view(getattr(self._torch, case.dtype))
