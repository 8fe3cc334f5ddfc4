"""What a call is going to do, and what one did."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Plan:
    """How a communicator would serve a call as things stand: equal on all ranks.

    Things are the arguments, and what all ranks saw alike in the last exchange: whether some of them sit
    behind different caches (docs/architecture.md). The bits of a result depend on neither.

    Attributes:
        collective: such as ``"all_reduce"``.
        nbytes: bytes of the call's larger side (all_gather and gather: the output, reduce_scatter and scatter:
            the input).
        dtype: element type.
        world_size: number of ranks.
        algorithm: ``"inline"``, ``"one_shot"``, ``"two_shot"`` or ``"direct"``.
        chunk_bytes: bytes that one exchange of flags moves for each rank.
        chunks: number of such chunks, pipelined through two slots. all_to_all_v: 1, since only the call itself
            tells the largest part.
        order: order level of the result; ``"rank"`` is ((x0 + x1) + x2) + ... with one rounding at the end.
        reason: why this algorithm.
    """

    collective: str
    nbytes: int
    dtype: str
    world_size: int
    algorithm: str
    chunk_bytes: int
    chunks: int
    order: str
    reason: str

    def __str__(self) -> str:
        pieces = f"{self.chunks} chunks of at most" if self.chunks > 1 else "one chunk of"
        return (
            f"{self.collective} of {self.nbytes} bytes ({self.dtype}) over {self.world_size} ranks: "
            f"{self.algorithm}, {pieces} {self.chunk_bytes} bytes, order {self.order}; {self.reason}"
        )


@dataclass(frozen=True)
class Receipt:
    """What one call really did on this rank.

    Attributes:
        collective: such as ``"all_reduce"``; ``"all_to_all_v"`` for an all_to_all with counts.
        epoch: number of the call in this communicator, from 1; refused calls count.
        algorithm: the algorithm that ran.
        op: operator, or None where nothing is reduced.
        dtype: element type, or None for a barrier.
        count: elements that each rank put in (reduce_scatter and scatter: that each rank got out; all_to_all:
            that each rank put in for each other; all_to_all_v: that this rank put in).
        nbytes: bytes of the call's larger side (all_to_all_v: of the larger side on this rank).
        chunks: exchanges of data.
        order: order level of the result.
        staged_bytes: bytes that this rank wrote into shared staging memory; 0 where nothing is staged.
    """

    collective: str
    epoch: int
    algorithm: str
    op: str | None
    dtype: str | None
    count: int
    nbytes: int
    chunks: int
    order: str
    staged_bytes: int
