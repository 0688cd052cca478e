"""Zagros for Python: embedding tables for PyTorch programs, saved models as data, jobs.

``import zagros`` needs neither torch nor pandas: each is imported by the first call that needs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._native import ZagrosError
from .settings import (
    SGD,
    Adagrad,
    Adam,
    AdamW,
    Bag,
    Constant,
    Ftrl,
    Normal,
    RowAdagrad,
    Uniform,
    Zero,
)

if TYPE_CHECKING:
    from .embedding import EmbeddingBags as EmbeddingBags

__version__ = "0.1.0"

__all__ = [
    "SGD",
    "Adagrad",
    "Adam",
    "AdamW",
    "Bag",
    "Constant",
    "EmbeddingBags",
    "Ftrl",
    "Normal",
    "RowAdagrad",
    "Uniform",
    "ZagrosError",
    "Zero",
]


def __getattr__(name: str) -> object:
    """Imports what needs torch when it is first used."""
    if name == "EmbeddingBags":
        from .embedding import EmbeddingBags

        return EmbeddingBags
    raise AttributeError(f"module 'zagros' has no attribute {name!r}")
