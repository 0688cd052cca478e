"""The built-in networks without sequences as modules of PyTorch. Each is written as its paper has it (docs/models.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ._layers import Weights


@dataclass(frozen=True)
class Inputs:
    """What a network reads.

    Attributes:
        numeric: Numbers, or what a numeric embedding made of them, ``[batch, values]``.
        vectors: The vector of each feature that is no sequence, ``[batch, dim]``.
        sequences: By name: vectors ``[batch, length, dim]``, zeros where padded, and which are real, bool ``[batch, length]``.
    """

    numeric: Tensor
    vectors: list[Tensor]
    sequences: dict[str, tuple[Tensor, Tensor]]

    def flat(self) -> Tensor:
        """Numbers and vectors side by side."""
        return torch.cat([self.numeric, *self.vectors], 1)


@dataclass(frozen=True)
class Form:
    """What a network is made from.

    Attributes:
        weights: Its tensors.
        model: The table ``[model]`` of the job.
        places: Where each numeric feature and each vector is in :meth:`Inputs.flat`, in this order.
        dims: Values of each vector, by the name of the feature.
        has_numbers: Whether there are any.
        outputs: Of each target.
    """

    weights: Weights
    model: Mapping[str, Any]
    places: list[tuple[str, range]]
    dims: dict[str, int]
    has_numbers: bool
    outputs: list[int]


class Network(nn.Module):
    """A network: :class:`Inputs` to ``[batch, outputs]``."""

    def forward(self, inputs: Inputs) -> Tensor:
        """``[batch, outputs]``."""
        raise NotImplementedError


class Dlrm(Network):
    """Naumov et al. 2019: dot products of every two vectors."""

    rows: Tensor
    columns: Tensor

    def __init__(self, form: Form) -> None:
        super().__init__()
        self.bottom = form.weights.mlp("bottom", ends_linear=False, drops=False) if form.has_numbers else None
        self.top = form.weights.mlp("top")
        vectors = len(form.dims) + int(form.has_numbers)
        for name, places in zip(("rows", "columns"), torch.tril_indices(vectors, vectors, -1), strict=True):
            self.register_buffer(name, places, persistent=False)

    def forward(self, inputs: Inputs) -> Tensor:
        dense = [self.bottom(inputs.numeric)] if self.bottom is not None else []
        vectors = torch.stack([*dense, *inputs.vectors], 1)
        products = vectors @ vectors.transpose(1, 2)
        out: Tensor = self.top(torch.cat([*dense, products[:, self.rows, self.columns]], 1))
        return out


class Ffnn(Network):
    """A feed-forward network over all features."""

    def __init__(self, form: Form) -> None:
        super().__init__()
        self.layers = form.weights.mlp("layers")

    def forward(self, inputs: Inputs) -> Tensor:
        out: Tensor = self.layers(inputs.flat())
        return out


class Dcnv2(Network):
    """Wang et al. 2021: cross layers, of full or of low rank."""

    def __init__(self, form: Form) -> None:
        super().__init__()
        weights, count = form.weights, int(form.model["cross_layers"])

        def cross(index: int) -> nn.Module:
            if weights.has(f"cross.{index}.weight"):
                return weights.linear(f"cross.{index}")
            return nn.Sequential(weights.linear(f"cross_down.{index}"), weights.linear(f"cross_up.{index}"))

        self.cross = nn.ModuleList(cross(index) for index in range(count))
        self.deep = weights.mlp("deep", ends_linear=False) if form.model["hidden"] else None
        self.is_parallel = form.model["structure"] == "parallel"
        self.output = weights.linear("output.0")

    def forward(self, inputs: Inputs) -> Tensor:
        first = inputs.flat()
        x = first
        for cross in self.cross:
            x = x + first * cross(x)
        if self.deep is not None:
            x = torch.cat([x, self.deep(first)], 1) if self.is_parallel else self.deep(x)
        out: Tensor = self.output(x)
        return out


class DeepFm(Network):
    """Guo et al. 2017. The first value of a row is its first-order weight, the others are its factors."""

    def __init__(self, form: Form) -> None:
        super().__init__()
        self.first_order = form.weights.linear("first_order.0") if form.has_numbers else None
        self.factors = form.weights.parameter("factors.weight") if form.has_numbers else None
        self.deep = form.weights.mlp("deep")

    def forward(self, inputs: Inputs) -> Tensor:
        rows = torch.stack(inputs.vectors, 1)
        logit, fields = rows[:, :, 0].sum(1, keepdim=True), rows[:, :, 1:]
        if self.first_order is not None and self.factors is not None:
            logit = logit + self.first_order(inputs.numeric)
            fields = torch.cat([inputs.numeric.unsqueeze(2) * self.factors, fields], 1)
        # The sum over all pairs, linear in the number of fields (Rendle 2010, lemma 3.1).
        pairs = (fields.sum(1).square() - fields.square().sum(1)).sum(1, keepdim=True) * 0.5
        out: Tensor = logit + pairs + self.deep(fields.flatten(1))
        return out


class WideDeep(Network):
    """Cheng et al. 2016. The first value of a row is its weight in the linear part."""

    def __init__(self, form: Form) -> None:
        super().__init__()
        self.wide = form.weights.linear("wide.0") if form.has_numbers else None
        self.deep = form.weights.mlp("deep")

    def forward(self, inputs: Inputs) -> Tensor:
        deep = torch.cat([inputs.numeric, *(vector[:, 1:] for vector in inputs.vectors)], 1)
        ids = torch.cat([vector[:, :1] for vector in inputs.vectors], 1).sum(1, keepdim=True)
        logit: Tensor = self.deep(deep) + ids
        return logit if self.wide is None else logit + self.wide(inputs.numeric)


class WukongLayer(nn.Module):
    """A factorisation machine block and a linear compress block."""

    def __init__(self, weights: Weights, index: int, dim: int) -> None:
        super().__init__()
        self.projection = weights.linear(f"fmb_projection.{index}")
        self.fm_norm = weights.layer_norm(f"fmb_norm.{index}")
        self.fm_mlp = weights.mlp(f"fmb_{index}", drops=False)
        self.compress = weights.linear(f"lcb.{index}")
        self.residual = weights.linear(f"residual.{index}") if weights.has(f"residual.{index}.weight") else None
        self.norm = weights.layer_norm(f"norm.{index}")
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        """``[batch, vectors, dim]`` to the same with as many vectors as the layer gives."""
        columns = x.transpose(1, 2)
        products = (x @ self.projection(columns)).flatten(1)
        made = self.fm_mlp(self.fm_norm(products)).reshape(x.shape[0], -1, self.dim)
        both = torch.cat([made, self.compress(columns).transpose(1, 2)], 1)
        kept = x if self.residual is None else self.residual(columns).transpose(1, 2)
        out: Tensor = self.norm(both + kept)
        return out


class Wukong(Network):
    """Zhang et al. 2024."""

    def __init__(self, form: Form) -> None:
        super().__init__()
        self.bottom = form.weights.mlp("bottom", ends_linear=False, drops=False) if form.has_numbers else None
        dim = next(iter(form.dims.values()))
        self.stack = nn.Sequential(*(WukongLayer(form.weights, index, dim) for index in range(int(form.model["layers"]))))
        self.top = form.weights.mlp("top")

    def forward(self, inputs: Inputs) -> Tensor:
        dense = [self.bottom(inputs.numeric)] if self.bottom is not None else []
        out: Tensor = self.top(self.stack(torch.stack([*dense, *inputs.vectors], 1)).flatten(1))
        return out


class Stream(nn.Module):
    """A stream of FinalMLP with its gate."""

    places: Tensor

    def __init__(self, name: str, form: Form) -> None:
        super().__init__()
        weights, self.gate, self.factors = form.weights, None, None
        if weights.has(f"gate_{name}.weight"):
            self.factors = weights.parameter(f"gate_{name}.weight")
        elif form.model.get("gate") is not None:
            self.gate = weights.plain_mlp(f"gate_{name}", nn.ReLU)
        read = (form.model.get("gate") or {}).get(name, [])
        places = [place for feature, span in form.places if feature in read for place in span]
        self.register_buffer("places", torch.tensor(places, dtype=torch.int64), persistent=False)
        self.layers = weights.mlp(name, ends_linear=False)

    def forward(self, x: Tensor) -> Tensor:
        """``[batch, width]`` to ``[batch, last width]``."""
        logits = self.gate(x[:, self.places]) if self.gate is not None else self.factors
        out: Tensor = self.layers(x if logits is None else 2 * x * torch.sigmoid(logits))
        return out


class FinalMlp(Network):
    """Mao et al. 2023: the bilinear product of two streams."""

    def __init__(self, form: Form) -> None:
        super().__init__()
        self.first, self.second = Stream("first", form), Stream("second", form)
        self.fusion_first = form.weights.linear("fusion_first.0")
        self.fusion_second = form.weights.linear("fusion_second.0")
        self.fusion = form.weights.parameter("fusion.0.weight")
        self.heads = int(form.model["heads"])

    def forward(self, inputs: Inputs) -> Tensor:
        x = inputs.flat()
        first, second = self.first(x), self.second(x)
        # [heads, batch, …] each.
        one, two = (stream.reshape(x.shape[0], self.heads, -1).transpose(0, 1) for stream in (first, second))
        products = self.fusion.reshape(-1, self.heads, one.shape[2], two.shape[2]).permute(1, 2, 0, 3)
        left = (one @ products.flatten(2)).reshape(self.heads, x.shape[0], -1, two.shape[2])
        interactions = (left * two.unsqueeze(2)).sum((0, 3))
        out: Tensor = self.fusion_first(first) + self.fusion_second(second) + interactions
        return out


class Gate(nn.Module):
    """Mixes the outputs of experts."""

    def __init__(self, weights: Weights, name: str) -> None:
        super().__init__()
        self.layer = weights.linear(name)

    def forward(self, x: Tensor, experts: list[Tensor]) -> Tensor:
        """``[batch, width]``, by what ``x`` says."""
        shares = functional.softmax(self.layer(x), 1)
        return (shares.unsqueeze(1) @ torch.stack(experts, 1)).squeeze(1)


class Experts(nn.Module):
    """So many MLPs over the same input."""

    def __init__(self, weights: Weights, name: str, count: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(weights.mlp(f"{name}_{index}", ends_linear=False) for index in range(count))

    def forward(self, x: Tensor) -> list[Tensor]:
        """The output of each."""
        return [expert(x) for expert in self.layers]


class Tasks(Network):
    """A tower of each target over what :meth:`read` gives."""

    def __init__(self, form: Form) -> None:
        super().__init__()
        self.towers = nn.ModuleList(form.weights.mlp(f"tower_{target}") for target in range(len(form.outputs)))

    def read(self, x: Tensor) -> list[Tensor]:
        """What each tower reads."""
        raise NotImplementedError

    def forward(self, inputs: Inputs) -> Tensor:
        read = self.read(inputs.flat())
        return torch.cat([tower(x) for tower, x in zip(self.towers, read, strict=True)], 1)


class SharedBottom(Tasks):
    """Caruana 1997."""

    def __init__(self, form: Form) -> None:
        super().__init__(form)
        self.bottom = form.weights.mlp("bottom", ends_linear=False)

    def read(self, x: Tensor) -> list[Tensor]:
        return [self.bottom(x)] * len(self.towers)


class Mmoe(Tasks):
    """Ma et al. 2018, equations 6 and 7."""

    def __init__(self, form: Form) -> None:
        super().__init__(form)
        self.experts = Experts(form.weights, "expert", int(form.model["experts"]))
        self.gates = nn.ModuleList(Gate(form.weights, f"gate.{target}") for target in range(len(form.outputs)))

    def read(self, x: Tensor) -> list[Tensor]:
        experts = self.experts(x)
        return [gate(x, experts) for gate in self.gates]


class Level(nn.Module):
    """A level of PLE."""

    def __init__(self, form: Form, level: int, is_last: bool) -> None:
        super().__init__()
        weights, targets, name = form.weights, range(len(form.outputs)), f"level_{level}"
        self.shared = Experts(weights, f"{name}_shared", int(form.model["shared_experts"]))
        of_tasks = int(form.model["task_experts"])
        self.own = nn.ModuleList(Experts(weights, f"{name}_target_{target}", of_tasks) for target in targets)
        self.gates = nn.ModuleList(Gate(weights, f"{name}_gate.{target}") for target in targets)
        self.shared_gate = None if is_last else Gate(weights, f"{name}_shared_gate.0")

    def forward(self, own: list[Tensor], shared: Tensor) -> tuple[list[Tensor], Tensor]:
        """The mix of each target, and that of all."""
        of_all = self.shared(shared)
        of_each = [outputs(x) for x, outputs in zip(own, self.own, strict=True)]
        mixes = [gate(x, mine + of_all) for gate, x, mine in zip(self.gates, own, of_each, strict=True)]
        if self.shared_gate is not None:
            shared = self.shared_gate(shared, [x for outputs in of_each for x in outputs] + of_all)
        return mixes, shared


class Ple(Tasks):
    """Tang et al. 2020, figure 5."""

    def __init__(self, form: Form) -> None:
        super().__init__(form)
        count = int(form.model["levels"])
        self.levels = nn.ModuleList(Level(form, level, level + 1 == count) for level in range(count))

    def read(self, x: Tensor) -> list[Tensor]:
        own, shared = [x] * len(self.towers), x
        for level in self.levels:
            own, shared = level(own, shared)
        return own
