"""DIN and BST as modules of PyTorch: networks that read sequences."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from ._layers import Dice, Weights, activation
from ._networks import Form, Inputs, Network

#: A score that leaves nothing of a position after a softmax, and stays finite.
_NEVER = -1e30


class PRelu(nn.Module):
    """max(0, x) + a·min(0, x) with a slope for each unit."""

    def __init__(self, weights: Weights, name: str) -> None:
        super().__init__()
        self.weight = weights.parameter(f"{name}.weight")

    def forward(self, x: Tensor) -> Tensor:
        """``[rows, width]`` to the same shape."""
        return functional.prelu(x, self.weight)


class ActivationUnit(nn.Module):
    """Weighs the positions of a sequence by how much they say about the target (Zhou et al. 2018)."""

    def __init__(self, form: Form, index: int) -> None:
        super().__init__()
        weights, kind = form.weights, form.model["activation"]
        count = weights.count(f"attention_{index}")

        def between(layer: int) -> nn.Module:
            if kind == "prelu":
                return PRelu(weights, f"slopes_{index}.{layer}")
            return weights.dice(f"dice_{index}.{layer}") if kind == "dice" else activation(kind)

        self.layers = nn.ModuleList(weights.linear(f"attention_{index}.{layer}") for layer in range(count))
        self.between = nn.ModuleList(between(layer) for layer in range(count - 1))
        self.softmax = bool(form.model["softmax"])

    def forward(self, values: Tensor, real: Tensor, target: Tensor) -> Tensor:
        """The weighed sum, ``[batch, dim]``."""
        target = target.unsqueeze(1).expand_as(values)
        x = torch.cat([values, target, values - target, values * target], 2).flatten(0, 1)
        for layer, between in zip(self.layers, self.between, strict=False):
            x = layer(x)
            x = between(x, real.flatten()) if isinstance(between, Dice) else between(x)
        scores = self.layers[-1](x).reshape(real.shape)
        if self.softmax:
            scores = scores.masked_fill(~real, _NEVER).softmax(1)
        shares = scores * real.to(scores.dtype)
        out: Tensor = (shares.unsqueeze(1) @ values).squeeze(1)
        return out


class SequenceNetwork(Network):
    """A network that compares sequences with targets, and an MLP over all that it makes."""

    def __init__(self, form: Form) -> None:
        super().__init__()
        self.pairs = [(pair["sequence"], list(form.dims).index(pair["target"])) for pair in form.model["attention"]]
        self.units = nn.ModuleList(self.unit(form, index) for index in range(len(self.pairs)))
        self.layers = form.weights.mlp("layers")

    def unit(self, form: Form, index: int) -> nn.Module:
        """What reads a sequence and its target."""
        raise NotImplementedError

    def forward(self, inputs: Inputs) -> Tensor:
        read = [unit(*inputs.sequences[name], inputs.vectors[target]) for unit, (name, target) in zip(self.units, self.pairs, strict=True)]
        out: Tensor = self.layers(torch.cat([inputs.flat(), *read], 1))
        return out


class Din(SequenceNetwork):
    """Zhou et al. 2018, equation 3."""

    def unit(self, form: Form, index: int) -> nn.Module:
        return ActivationUnit(form, index)


class Block(nn.Module):
    """Self-attention and a feed-forward network of each position."""

    def __init__(self, form: Form, pair: int, layer: int) -> None:
        super().__init__()
        weights = form.weights
        self.query, self.key, self.value, self.mix = (
            weights.linear(f"{name}_{pair}.{layer}") for name in ("query", "key", "value", "mix")
        )
        self.attention_norm = weights.layer_norm(f"attention_norm_{pair}.{layer}")
        self.ffn = weights.plain_mlp(f"ffn_{pair}_{layer}", nn.LeakyReLU)
        self.ffn_norm = weights.layer_norm(f"ffn_norm_{pair}.{layer}")
        self.heads = int(form.model["heads"])

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """``[batch, positions, dim]`` to the same shape. ``mask`` is added to the scores."""
        query, key, value = (
            layer(x).reshape(*x.shape[:2], self.heads, -1).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        attended = functional.scaled_dot_product_attention(query, key, value, mask)
        s = self.attention_norm(x + self.mix(attended.transpose(1, 2).flatten(2)))
        out: Tensor = self.ffn_norm(s + self.ffn(s))
        return out


class Transformer(nn.Module):
    """Reads a sequence and, as one more position, its target."""

    def __init__(self, form: Form, pair: int) -> None:
        super().__init__()
        self.positions = form.weights.parameter(f"positions_{pair}.weight")
        self.blocks = nn.ModuleList(Block(form, pair, layer) for layer in range(int(form.model["layers"])))
        self.causal = bool(form.model["causal"])

    def forward(self, values: Tensor, real: Tensor, target: Tensor) -> Tensor:
        """The outputs of all positions, ``[batch, (length + 1)·dim]``."""
        x = torch.cat([values, target.unsqueeze(1)], 1) + self.positions
        real = torch.cat([real, real.new_ones(real.shape[0], 1)], 1)
        hidden = ~real[:, None, None, :]
        if self.causal:
            count = x.shape[1]
            hidden = hidden | torch.ones(count, count, dtype=torch.bool, device=x.device).triu(1)
        mask = hidden.to(x.dtype) * _NEVER
        for block in self.blocks:
            x = block(x, mask)
        return (x * real.to(x.dtype).unsqueeze(2)).flatten(1)


class Bst(SequenceNetwork):
    """Chen et al. 2019."""

    def unit(self, form: Form, index: int) -> nn.Module:
        return Transformer(form, index)
