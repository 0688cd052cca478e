"""Tensors of the native half as NumPy arrays, without a copy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from typing_extensions import CapsuleType

#: Where a tensor is: the processor's own memory.
_HOST = (1, 0)


class _Tensor:
    """A capsule as NumPy takes it."""

    def __init__(self, capsule: CapsuleType) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: object) -> CapsuleType:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return _HOST


def array(capsule: CapsuleType) -> npt.NDArray[Any]:
    """The array of a capsule."""
    return np.from_dlpack(_Tensor(capsule))  # type: ignore[arg-type, unused-ignore]
