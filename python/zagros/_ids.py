"""The ids of a batch as a caller gives them: checked, flat, with what is needed to pool their rows."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Union

import torch
from torch import Tensor
from torch.nn import functional

from .settings import Bag, Pooling

#: Ids of one feature: ``[batch]`` (one id a sample), ``[batch, n]`` (n ids a sample), or a pair of all ids ``[total]`` and
#: the position of each sample's first id ``[batch]``, as ``torch.nn.EmbeddingBag`` takes them.
Ids = Union[Tensor, tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class FlatIds:
    """The ids of one feature.

    Attributes:
        flat: All ids, int64 ``[total]``, contiguous, on the CPU.
        offsets: Position of each sample's first id and the end of the last, int64 ``[batch + 1]``; None with as many ids in
            each sample.
        per_sample: Ids of each sample; None with ``offsets``.
        device: Where the ids were, and where the vectors go.
    """

    flat: Tensor
    offsets: Tensor | None
    per_sample: int | None
    device: torch.device

    @property
    def samples(self) -> int:
        """Samples of the batch."""
        if self.offsets is not None:
            return self.offsets.numel() - 1
        return self.flat.numel() // (self.per_sample or 1)

    def pool(self, rows: Tensor, inverse: Tensor, pooling: Pooling) -> Tensor:
        """The vector of each sample ``[batch, dim]``, from the distinct rows ``[ids, dim]`` and the positions ``[total]``."""
        inverse = inverse.to(rows.device)
        if self.per_sample == 1:
            return functional.embedding(inverse, rows)
        mode = "mean" if pooling == "mean" else "sum"
        if self.offsets is None:
            count = self.per_sample or 0
            if count == 0:
                return rows.new_zeros(0, rows.shape[1])
            pooled = functional.embedding_bag(inverse.view(-1, count), rows, mode=mode)
            return pooled / count**0.5 if pooling == "sqrtn" else pooled
        offsets = self.offsets.to(rows.device)
        if rows.shape[0] == 0:
            return rows.sum() + rows.new_zeros(self.samples, rows.shape[1])
        pooled = functional.embedding_bag(inverse, rows, offsets, mode=mode, include_last_offset=True)
        if pooling == "sqrtn":
            pooled = pooled / offsets.diff().clamp(min=1).to(pooled.dtype).sqrt().unsqueeze(1)
        return pooled


def flatten(bags: Mapping[str, Bag], ids: Mapping[str, Ids]) -> dict[str, FlatIds]:
    """The ids of each feature, in the order of the features."""
    if not isinstance(ids, Mapping):
        raise TypeError(f"ids are {type(ids).__name__}; give a dict from the name of each feature to its ids")
    for name in ids:
        if name not in bags:
            raise ValueError(f"there is no feature {name!r}; {_near(str(name), list(bags))}")
    missing = [name for name in bags if name not in ids]
    if missing:
        raise ValueError(f"the batch has no ids of the feature {missing[0]!r}; give an empty bag to a sample without ids")
    flat = {name: _flat(name, ids[name]) for name in bags}
    first, size = next((name, found.samples) for name, found in flat.items())
    for name, found in flat.items():
        if found.samples != size:
            raise ValueError(f"{first!r} has ids of {size} samples, and {name!r} of {found.samples}")
    return flat


def key_of(ids: Mapping[str, Ids]) -> tuple[object, ...]:
    """What two dicts with the same ids in the same memory have in common: torch counts what changes a tensor in place."""
    parts: list[object] = []
    for name in sorted(ids):
        found = ids[name]
        for tensor in found if isinstance(found, tuple) else (found,):
            if not isinstance(tensor, Tensor):
                return (id(ids),)
            version = 0 if tensor.is_inference() else tensor._version
            parts.append((name, tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype, version))
    return tuple(parts)


def _near(name: str, names: list[str]) -> str:
    near = difflib.get_close_matches(name, names, 1)
    return f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names)}"


def _flat(name: str, ids: Ids) -> FlatIds:
    if isinstance(ids, tuple):
        if len(ids) != 2:
            raise ValueError(f"the ids of {name!r} are {len(ids)} tensors; give a pair of ids and offsets")
        values, offsets = _int64(name, "ids", ids[0]), _int64(name, "offsets", ids[1])
        if values.dim() != 1 or offsets.dim() != 1:
            raise ValueError(
                f"ids and offsets of {name!r} have the shapes {list(values.shape)} and {list(offsets.shape)}; each is a list"
            )
        offsets = offsets.cpu()
        total = values.numel()
        ends = torch.cat([offsets, offsets.new_tensor([total])])
        if (offsets.numel() == 0 and total > 0) or (offsets.numel() > 0 and offsets[0] != 0) or bool((ends.diff() < 0).any()):
            raise ValueError(f"the offsets of {name!r} do not divide its {total} ids: they begin with 0 and do not descend")
        return FlatIds(values.cpu().contiguous(), ends, None, values.device)
    values = _int64(name, "ids", ids)
    if values.dim() not in (1, 2):
        raise ValueError(f"the ids of {name!r} have the shape {list(values.shape)}; it is [batch] or [batch, ids of a sample]")
    per_sample = values.shape[1] if values.dim() == 2 else 1
    if per_sample == 0:
        return FlatIds(values.new_zeros(0).cpu(), torch.zeros(values.shape[0] + 1, dtype=torch.int64), None, values.device)
    return FlatIds(values.detach().reshape(-1).cpu().contiguous(), None, per_sample, values.device)


def _int64(name: str, what: str, tensor: object) -> Tensor:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"the {what} of {name!r} are {type(tensor).__name__}; give a tensor of torch.int64")
    if tensor.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"the {what} of {name!r} are {tensor.dtype}; give a tensor of torch.int64")
    return tensor.to(torch.int64)
