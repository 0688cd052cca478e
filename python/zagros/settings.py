"""What tables are like: their features, optimisers and first values. Each is a value that becomes keys of a job file."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Literal, Union

Pooling = Literal["sum", "mean", "sqrtn"]


@dataclass(frozen=True)
class Bag:
    """A feature: how its ids become one vector for each sample.

    Args:
        dim: Values of a row and of the vector, 1 to 4096.
        pooling: ``sum``, ``mean``, or ``sqrtn`` (the sum divided by the square root of the number of ids). A bag without
            ids is a vector of zeros.
        table: Name of the table with the rows. Features that name the same table share its rows. Default: a table of the
            feature's own name.
    """

    dim: int
    pooling: Pooling = "sum"
    table: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.dim, bool) or not isinstance(self.dim, int) or not 1 <= self.dim <= 4096:
            raise ValueError(f"dim is {self.dim!r}; it is a whole number from 1 to 4096")
        if self.pooling not in ("sum", "mean", "sqrtn"):
            raise ValueError(f"pooling is {self.pooling!r}; it is \"sum\", \"mean\" or \"sqrtn\"")


@dataclass(frozen=True)
class SGD:
    """Gradient descent: ``v = momentum * v + g; w -= lr * v``."""

    lr: float = 0.1
    momentum: float = 0.0
    l2: float = 0.0


@dataclass(frozen=True)
class Adagrad:
    """Adagrad, element-wise: ``a += g**2; w -= lr * g / (sqrt(a) + epsilon)``, as ``torch.optim.Adagrad``."""

    lr: float = 0.02
    epsilon: float = 1e-8
    initial_accumulator: float = 0.0
    l2: float = 0.0


@dataclass(frozen=True)
class RowAdagrad:
    """Adagrad with one accumulator for each row: ``a += mean(g**2)``."""

    lr: float = 0.02
    epsilon: float = 1e-8
    initial_accumulator: float = 0.0
    l2: float = 0.0


@dataclass(frozen=True)
class Adam:
    """Adam on the rows of a batch, each corrected by the number of its own updates."""

    lr: float = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    l2: float = 0.0


@dataclass(frozen=True)
class AdamW:
    """Adam with decoupled weight decay of the rows of a batch."""

    lr: float = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.01


@dataclass(frozen=True)
class Ftrl:
    """FTRL-proximal."""

    lr: float = 0.05
    beta: float = 0.0001
    l1: float = 0.0
    l2: float = 0.0


@dataclass(frozen=True)
class Zero:
    """Rows start at zero."""


@dataclass(frozen=True)
class Uniform:
    """Rows start uniform in ``[-bound, bound)``."""

    bound: float = 0.01


@dataclass(frozen=True)
class Normal:
    """Rows start normal around zero."""

    deviation: float = 0.01


@dataclass(frozen=True)
class Constant:
    """Rows start with one value."""

    value: float


Optimizer = Union[SGD, Adagrad, RowAdagrad, Adam, AdamW, Ftrl]
Init = Union[Zero, Uniform, Normal, Constant]

_KINDS: dict[type, str] = {
    SGD: "sgd",
    Adagrad: "adagrad",
    RowAdagrad: "row_adagrad",
    Adam: "adam",
    AdamW: "adamw",
    Ftrl: "ftrl",
    Zero: "zero",
    Uniform: "uniform",
    Normal: "normal",
    Constant: "constant",
}


def keys_of(setting: Optimizer | Init) -> dict[str, object]:
    """The keys of a job file, such as ``{"kind": "sgd", "lr": 0.1}``."""
    kind = _KINDS.get(type(setting))
    if kind is None:
        known = ", ".join(sorted(f"zagros.{known.__name__}" for known in _KINDS))
        raise TypeError(f"{setting!r} is neither an optimiser of rows nor a first value; there are {known}")
    for field in fields(setting):
        value = getattr(setting, field.name)
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            raise TypeError(f"{type(setting).__name__}.{field.name} is {value!r}; it is a number")
        if not math.isfinite(value):
            raise ValueError(f"{type(setting).__name__}.{field.name} is {value!r}; it is finite")
    return {"kind": kind, **{name: float(value) for name, value in asdict(setting).items()}}


def bags_of(features: Mapping[str, int | Bag]) -> dict[str, Bag]:
    """The features, each as a bag; checked."""
    if not features:
        raise ValueError("there are no features; name one with its dim, such as {\"C1\": 16}")
    if not isinstance(features, Mapping):
        raise TypeError(f"features are {type(features).__name__}; give a dict from the name of each to its dim, such as {{\"C1\": 16}}")
    for name in features:
        if not isinstance(name, str):
            raise TypeError(f"the name of a feature is {name!r}; it is a text")
    bags = {name: bag if isinstance(bag, Bag) else Bag(bag) for name, bag in features.items()}
    dims: dict[str, tuple[str, int]] = {}
    for name, bag in bags.items():
        first, dim = dims.setdefault(bag.table or name, (name, bag.dim))
        if dim != bag.dim:
            table = bag.table or name
            raise ValueError(f"features {first!r} and {name!r} share the table {table!r}, and have dims {dim} and {bag.dim}")
    return bags
