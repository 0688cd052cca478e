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
    from .imports import import_rows as import_rows
    from .imports import torchrec_tables as torchrec_tables
    from .jobs import Predictions as Predictions
    from .jobs import Run as Run
    from .jobs import predict as predict
    from .jobs import train as train
    from .models import Model as Model
    from .models import RowBlock as RowBlock
    from .models import SavedTable as SavedTable
    from .models import open_model as open
    from .searches import Range as Range
    from .searches import ScalingLaw as ScalingLaw
    from .searches import Sweep as Sweep
    from .searches import scaling_law as scaling_law
    from .searches import sweep as sweep

__version__ = "0.1.0"

# Without `open`, which would hide the function of the language: zagros.open.
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
    "Predictions",
    "Range",
    "RowAdagrad",
    "RowBlock",
    "Run",
    "SavedTable",
    "ScalingLaw",
    "Sweep",
    "Uniform",
    "ZagrosError",
    "Zero",
    "data",
    "id_of",
    "import_rows",
    "predict",
    "scaling_law",
    "sweep",
    "torchrec_tables",
    "train",
]

#: What is imported when it is first used: the module, and the name there.
_LATER = {
    "EmbeddingBags": ("embedding", "EmbeddingBags"),
    "Model": ("models", "Model"),
    "RowBlock": ("models", "RowBlock"),
    "Predictions": ("jobs", "Predictions"),
    "Range": ("searches", "Range"),
    "Run": ("jobs", "Run"),
    "SavedTable": ("models", "SavedTable"),
    "ScalingLaw": ("searches", "ScalingLaw"),
    "Sweep": ("searches", "Sweep"),
    "import_rows": ("imports", "import_rows"),
    "open": ("models", "open_model"),
    "predict": ("jobs", "predict"),
    "scaling_law": ("searches", "scaling_law"),
    "sweep": ("searches", "sweep"),
    "torchrec_tables": ("imports", "torchrec_tables"),
    "train": ("jobs", "train"),
}


def __getattr__(name: str) -> object:
    if name == "data":
        return importlib.import_module(".data", __name__)
    if name not in _LATER:
        raise AttributeError(f"module 'zagros' has no attribute {name!r}")
    module, attribute = _LATER[name]
    try:
        return getattr(importlib.import_module(f".{module}", __name__), attribute)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ModuleNotFoundError(f"zagros.{name} needs PyTorch, which is not installed; next: pip install torch", name="torch") from None


def __dir__() -> list[str]:
    return sorted([*__all__, "open", "__version__"])
