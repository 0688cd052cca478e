"""The first weights of a row, which an id without a row is read with: a function of seed, table and id (docs/job-file.md, ``init``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

_WORD = 0xFFFFFFFF
#: Philox4x32-10 (Salmon et al. 2011).
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
#: A truncated normal draws again beyond this many deviations, at most so often.
_BOUND, _DRAWS = 2.0, 32
_STORED = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
#: The largest code of int8 weights, and the bits that a scale does not use (table/src/row/weight_type/int8.rs).
_LARGEST, _UNUSED = 127.0, (1 << 7) - 1


@dataclass(frozen=True)
class FirstRows:
    """How the first weights of a table's rows are drawn.

    Attributes:
        seed: That of the run.
        table: The number of the table.
        dim: Values of a row.
        init: The table ``init`` of the job; None if an id without a row is answered with zeros.
        element: How weights are stored.
    """

    seed: int
    table: int
    dim: int
    init: Mapping[str, Any] | None
    element: str

    def of(self, ids: Tensor) -> Tensor:
        """The first weights of rows: int64 ``[ids]`` to float32 ``[ids, dim]``."""
        values = self._drawn(ids)[:, : self.dim].to(torch.float32)
        return _as_codes(values) if self.element == "int8" else values.to(_STORED[self.element]).to(torch.float32)

    def _drawn(self, ids: Tensor) -> Tensor:
        kind = "zero" if self.init is None else self.init["kind"]
        if self.init is None or kind == "zero":
            return torch.zeros(len(ids), self.dim, device=ids.device)
        if kind == "constant":
            return torch.full((len(ids), self.dim), float(np.float32(self.init["value"])), device=ids.device)
        if kind in ("normal", "truncated_normal"):
            deviation = float(np.float32(self.init["deviation"]))
            return deviation * (self._normals(ids, 0) if kind == "normal" else self._truncated(ids))
        bound = self.init["bound"] if kind == "uniform" else (6 / (float(np.float32(self.init["rows"])) + self.dim)) ** 0.5
        half = float(1 << 23)
        signed = ((self._words(ids, 0) >> 8).to(torch.float32) - half) / half
        return float(np.float32(bound)) * signed

    def _words(self, ids: Tensor, draw: int) -> Tensor:
        """Words of 32 bits, int64 ``[ids, dim rounded up to 4]``."""
        blocks = torch.arange((self.dim + 3) // 4, device=ids.device) | draw << 16
        counter = [
            blocks.expand(len(ids), -1),
            torch.full_like(blocks, self.table).expand(len(ids), -1),
            (ids & _WORD).unsqueeze(1).expand(-1, len(blocks)),
            (ids >> 32 & _WORD).unsqueeze(1).expand(-1, len(blocks)),
        ]
        key = [self.seed & _WORD, self.seed >> 32 & _WORD]
        for _ in range(_ROUNDS):
            # The products wrap around to signed numbers with the same bits.
            first, second = counter[0] * _MULTIPLIERS[0], counter[2] * _MULTIPLIERS[1]
            counter = [
                (second >> 32 & _WORD) ^ counter[1] ^ key[0],
                second & _WORD,
                (first >> 32 & _WORD) ^ counter[3] ^ key[1],
                first & _WORD,
            ]
            key = [(part + step) & _WORD for part, step in zip(key, _KEY_STEPS, strict=True)]
        return torch.stack(counter, 2).flatten(1)

    def _normals(self, ids: Tensor, draw: int) -> Tensor:
        """Standard normals by the method of Box and Muller (1958), float64."""
        words = self._words(ids, draw).to(torch.float64).reshape(len(ids), -1, 2)
        radius = (-2.0 * torch.log((words[:, :, 0] + 1.0) / 2.0**32)).sqrt()
        angle = 2 * torch.pi * (words[:, :, 1] / 2.0**32)
        return torch.stack([radius * angle.cos(), radius * angle.sin()], 2).flatten(1)

    def _truncated(self, ids: Tensor) -> Tensor:
        values = self._normals(ids, 0)
        for draw in range(1, _DRAWS):
            beyond = values.abs() > _BOUND
            if not bool(beyond.any()):
                break
            values = torch.where(beyond, self._normals(ids, draw), values)
        return values.clamp(-_BOUND, _BOUND)


def _as_codes(values: Tensor) -> Tensor:
    """Each row as whole numbers times its scale, ``[rows, dim]``."""
    exact = values.abs().amax(1, keepdim=True) / _LARGEST
    scales = (exact.view(torch.int32) + _UNUSED & ~_UNUSED).view(torch.float32)
    return torch.where(scales > 0, (values / scales).round() * scales, torch.zeros_like(values))
