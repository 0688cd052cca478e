"""A lookup as a node of torch's graph: its outputs are rows, and its gradient leaves for the servers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Optional

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.dlpack import from_dlpack

from ._native import Batch, NativeSession

#: Of each table; None for one that the loss does not depend on.
Gradients = tuple[Optional[Tensor], ...]


class Lookup:
    """A batch of ids on its way.

    Attributes:
        batch: Its native half.
        reads: Whether it is read only: no gradient comes back.
        take: Called by backward with its gradients.
        scale: Factor of its gradients, which a gradient scaler has chosen.
    """

    def __init__(self, session: NativeSession, batch: Batch, reads: bool, take: Callable[[Lookup, Gradients], None]) -> None:
        self._session = session
        self.batch = batch
        self.reads = reads
        self.take = take
        self.scale = 1.0

    def rows(self) -> list[tuple[int, Tensor]]:
        """Waits for the rows: the position of each table, and its distinct rows ``[ids, dim]`` on the CPU."""
        found = self._session.rows(self.batch)
        return [(table, from_dlpack(rows)) for table, rows in found]

    def inverse(self) -> list[Tensor]:
        """For each feature, the positions of its ids in the rows of its table, int64 ``[total]``."""
        return [from_dlpack(positions) for positions in self.batch.inverse()]


class PulledRows(torch.autograd.Function):
    """Rows of all tables of a batch. Its backward is called once, when the gradients of all of them are known."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, lookup: Lookup, device: torch.device, *rows: Tensor) -> tuple[Tensor, ...]:
        ctx.lookup = lookup
        # A table that the loss does not depend on has no gradient, and its rows stay as they are.
        ctx.set_materialize_grads(False)
        return tuple(table.to(device) if table.device != device else table.view_as(table) for table in rows)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[None, ...]:
        ctx.lookup.take(ctx.lookup, gradients)
        return (None, None, None, *(None for _ in gradients))
