"""Layers of the built-in networks as modules of PyTorch, with the weights of a saved model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ._native import ZagrosError

#: By the name that a job gives them.
_ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
}


class Dice(nn.Module):
    """Dice (Zhou et al. 2018, equation 5): a leaky unit whose bend is smooth and at the mean of its values."""

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, weight: Tensor, mean: Tensor, variance: Tensor) -> None:
        super().__init__()
        #: The slope of each unit, ``[width]``.
        self.weight = nn.Parameter(weight)
        self.register_buffer("running_mean", mean)
        self.register_buffer("running_var", variance)

    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        """``[rows, width]`` to the same shape. ``real`` ``[rows]`` says which rows count in training; without it all do."""
        mean, variance = self._of_batch(x, real) if self.training else (self.running_mean, self.running_var)
        share = torch.sigmoid((x - mean) / torch.sqrt(variance + 1e-8))
        return x * (share * (self.weight.neg() + 1) + self.weight)

    def _of_batch(self, x: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor]:
        real = x.new_ones(len(x), 1) if real is None else real.to(x.dtype).reshape(-1, 1)
        count = real.sum()
        shares = real / count.clamp(min=1)
        mean = (x * shares).sum(0)
        variance = ((x - mean).square() * shares).sum(0)
        with torch.no_grad():
            step = 0.1 * count.clamp(max=1)
            self.running_mean += step * (mean - self.running_mean)
            self.running_var += step * (variance * count / (count - 1).clamp(min=1) - self.running_var)
        return mean, variance


class Weights:
    """The tensors of ``dense.safetensors`` by name, each of which becomes part of one layer.

    Args:
        tensors: All of them.
        mlp: The table ``[mlp]`` of the job: what follows hidden layers.
        dropout: Share of hidden units that training drops.
    """

    def __init__(self, tensors: Mapping[str, Any], mlp: Mapping[str, Any], dropout: float) -> None:
        # Copied: arrays of a file cannot be written to.
        self._left = {name: torch.tensor(values) for name, values in tensors.items()}
        self._mlp, self._dropout = mlp, dropout

    def has(self, name: str) -> bool:
        """Whether there is a tensor of this name that is not taken."""
        return name in self._left

    def tensor(self, name: str) -> Tensor:
        """A tensor, which is taken."""
        if name not in self._left:
            raise ZagrosError(f"the dense weights have no tensor {name!r}; they are not those of the job that was saved with them")
        return self._left.pop(name)

    def parameter(self, name: str) -> nn.Parameter:
        """A tensor as a parameter."""
        return nn.Parameter(self.tensor(name))

    def linear(self, name: str) -> nn.Linear:
        """``name.weight`` and, if there is one, ``name.bias``."""
        weight = self.parameter(f"{name}.weight")
        layer = nn.Linear(weight.shape[1], weight.shape[0], bias=self.has(f"{name}.bias"), device="meta")
        layer.weight = weight
        if self.has(f"{name}.bias"):
            layer.bias = self.parameter(f"{name}.bias")
        return layer

    def layer_norm(self, name: str) -> nn.LayerNorm:
        """A norm over the last axis."""
        weight = self.parameter(f"{name}.weight")
        norm = nn.LayerNorm(len(weight))
        norm.weight, norm.bias = weight, self.parameter(f"{name}.bias")
        return norm

    def batch_norm(self, name: str) -> nn.BatchNorm1d:
        """A norm over the samples, with running statistics."""
        weight = self.parameter(f"{name}.weight")
        norm = nn.BatchNorm1d(len(weight))
        norm.weight, norm.bias = weight, self.parameter(f"{name}.bias")
        norm.running_mean, norm.running_var = self.tensor(f"{name}.running_mean"), self.tensor(f"{name}.running_var")
        return norm

    def dice(self, name: str) -> Dice:
        """A Dice."""
        return Dice(*(self.tensor(f"{name}.{part}") for part in ("weight", "running_mean", "running_var")))

    def count(self, stack: str) -> int:
        """How many layers ``stack.0``, ``stack.1``, … there are."""
        count = 0
        while self.has(f"{stack}.{count}.weight"):
            count += 1
        return count

    def mlp(self, stack: str, *, ends_linear: bool = True, drops: bool = True) -> nn.Sequential:
        """The layers ``stack.0``, … with norm, activation and dropout after the hidden ones; none, if there are none.

        Args:
            stack: Their name.
            ends_linear: Whether nothing follows the last layer.
            drops: Whether training drops hidden units.
        """
        count = self.count(stack)
        layers: list[nn.Module] = []
        for index in range(count):
            layers.append(self.linear(f"{stack}.{index}"))
            if ends_linear and index + 1 == count:
                break
            if self._mlp["norm"] != "none":
                norm = self.layer_norm if self._mlp["norm"] == "layer" else self.batch_norm
                layers.append(norm(f"{stack}_norm.{index}"))
            kind = self._mlp["activation"]
            layers.append(self.dice(f"{stack}_dice.{index}") if kind == "dice" else activation(kind))
            if drops and self._dropout > 0:
                layers.append(nn.Dropout(self._dropout))
        return nn.Sequential(*layers)

    def plain_mlp(self, stack: str, between: Callable[[], nn.Module]) -> nn.Sequential:
        """The layers ``stack.0``, … with an activation between them that the job does not choose."""
        count = self.count(stack)
        layers: list[nn.Module] = []
        for index in range(count):
            layers += [self.linear(f"{stack}.{index}")] + ([between()] if index + 1 < count else [])
        return nn.Sequential(*layers)

    def finish(self) -> None:
        """Raises a ZagrosError if a tensor is part of no layer."""
        if self._left:
            raise ZagrosError(f"to_torch() has no place for the tensor {min(self._left)!r} of the dense weights; use a package of the release that saved them")


def activation(kind: str) -> nn.Module:
    """An activation without weights."""
    return _ACTIVATIONS[kind]()


class NumericEmbedding(nn.Module):
    """PLR (Gorishniy et al. 2022): vectors in place of single numbers.

    Args:
        weights: Those of the model.
        embedded: Which inputs are embedded.
        inputs: The number of all inputs.
    """

    embedded: Tensor
    others: Tensor
    order: Tensor

    def __init__(self, weights: Weights, embedded: list[int], inputs: int) -> None:
        super().__init__()
        self.frequencies = weights.parameter("numeric_embedding.frequencies")
        self.weight = weights.parameter("numeric_embedding.weight")
        self.bias = weights.parameter("numeric_embedding.bias")
        dim, vectors = self.bias.shape[1], 0
        others: list[int] = []
        order: list[int] = []
        for index in range(inputs):
            if index in embedded:
                order += range(vectors * dim, (vectors + 1) * dim)
                vectors += 1
            else:
                order.append(len(embedded) * dim + len(others))
                others.append(index)
        for name, places in (("embedded", embedded), ("others", others), ("order", order)):
            self.register_buffer(name, torch.tensor(places, dtype=torch.int64), persistent=False)

    def forward(self, numeric: Tensor) -> Tensor:
        """``[batch, inputs]`` to ``[batch, values]``, in the order of the features."""
        numbers = numeric[:, self.embedded].T.unsqueeze(2)
        phases = numbers * self.frequencies.unsqueeze(1) * (2 * torch.pi)
        periodic = torch.cat([phases.sin(), phases.cos()], 2)
        vectors = functional.relu(periodic @ self.weight + self.bias.unsqueeze(1))
        side_by_side = vectors.transpose(0, 1).flatten(1)
        return torch.cat([side_by_side, numeric[:, self.others]], 1)[:, self.order]
