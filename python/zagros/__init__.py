"""Zagros for Python: embedding tables for PyTorch programs, saved models as data, jobs.

``import zagros`` needs neither torch nor pandas: each is imported by the first call that needs it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from ._native import ZagrosError, id_of
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
    from . import data as data
    from .embedding import EmbeddingBags as EmbeddingBags
    from .jobs import Run as Run
    from .jobs import train as train
    from .models import Model as Model
    from .models import SavedTable as SavedTable
    from .models import open_model as open

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
    "Model",
    "Normal",
    "RowAdagrad",
    "Run",
    "SavedTable",
    "Uniform",
    "ZagrosError",
    "Zero",
    "data",
    "id_of",
    "open",
    "train",
]

#: What is imported when it is first used: the module, and the name there.
_LATER = {
    "EmbeddingBags": ("embedding", "EmbeddingBags"),
    "Model": ("models", "Model"),
    "Run": ("jobs", "Run"),
    "SavedTable": ("models", "SavedTable"),
    "open": ("models", "open_model"),
    "train": ("jobs", "train"),
}


def __getattr__(name: str) -> object:
    if name == "data":
        return importlib.import_module(".data", __name__)
    if name not in _LATER:
        raise AttributeError(f"module 'zagros' has no attribute {name!r}")
    module, attribute = _LATER[name]
    return getattr(importlib.import_module(f".{module}", __name__), attribute)
