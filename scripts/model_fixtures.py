"""Reference values of the dense networks, computed by PyTorch in f64: logits, loss and every gradient; and modules.

    python scripts/model_fixtures.py            # writes dense-worker/torch/src/fixtures/*.json
    python scripts/model_fixtures.py modules    # writes *.pt there and prints their SHA-256, which differs each time

The networks are written from their papers, sample by sample and pair by pair, not from the Rust code: they share
nothing with it but the names of the weights. Values are multiples of 1/1024, which f32 and JSON hold exactly.
Made with torch 2.14.1; other releases differ in the last digits at most.
"""

import hashlib
import json
import pathlib
import sys

import torch
from torch import nn
from torch.nn import functional

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "dense-worker/torch/src/fixtures"
BATCH = 5


class Case:
    """Weights by name, made on demand, and the inputs of a batch."""

    def __init__(self, seed, numeric, dims, sequences=()):
        self.random = torch.Generator().manual_seed(seed)
        self.numeric, self.dims, self.sequences, self.weights = numeric, dims, sequences, {}
        self.x = self.values(BATCH, numeric)
        vectors = self.values(BATCH, sum(dims))
        self.e = torch.cat([vectors] + [self.padded(*s) for s in sequences], 1).requires_grad_()
        self.labels = torch.tensor([float(i % 2) for i in range(BATCH)], dtype=torch.float64)

    def values(self, *shape):
        return torch.randint(-1024, 1025, shape, generator=self.random).to(torch.float64) / 1024

    def padded(self, length, dim, pad):
        """A sequence of each sample: its positions, zeros where it is padded, and the number of real ones: 0, all, 1, 2, 1."""
        rows = []
        for sample in range(BATCH):
            real = [0, length, 1, 2, 1][sample]
            values = [self.values(real, dim), torch.zeros(length - real, dim, dtype=torch.float64)]
            values = torch.cat(values if pad == "right" else values[::-1]).flatten()
            rows.append(torch.cat([values, torch.tensor([float(real)], dtype=torch.float64)]))
        return torch.stack(rows)

    def sequence(self, e, index):
        """The real positions of a sample's sequence, each a vector."""
        start = sum(self.dims) + sum(length * dim + 1 for length, dim, _ in self.sequences[:index])
        length, dim, pad = self.sequences[index]
        positions = list(torch.split(e[start : start + length * dim], dim))
        real = int(e[start + length * dim])
        first = 0 if pad == "right" else length - real
        return positions[first : first + real]

    def weight(self, name, *shape):
        if name not in self.weights:
            self.weights[name] = self.values(*shape).requires_grad_()
        return self.weights[name]

    def linear(self, name, x, outputs, bias=True):
        layer = nn.Linear(x.numel(), outputs, bias=bias, dtype=torch.float64)
        given = {"weight": self.weight(f"{name}.weight", outputs, x.numel())}
        if bias:
            given["bias"] = self.weight(f"{name}.bias", outputs)
        return torch.func.functional_call(layer, given, (x,))

    def mlp(self, name, x, widths, activate_last):
        for index, width in enumerate(widths):
            x = self.linear(f"{name}.{index}", x, width)
            if activate_last or index + 1 < len(widths):
                x = functional.relu(x)
        return x

    def vectors(self, e):
        return list(torch.split(e[: sum(self.dims)], self.dims))


def dlrm(case, x, e, bottom, top):
    vectors, dense = case.vectors(e), []
    if case.numeric:
        dense = [case.mlp("bottom", x, bottom + case.dims[:1], True)]
    vectors = dense + vectors
    pairs = [vectors[i].dot(vectors[j]).reshape(1) for i in range(len(vectors)) for j in range(i)]
    return case.mlp("top", torch.cat(dense + pairs), top + [1], False)


def ffnn(case, x, e, hidden):
    return case.mlp("layers", torch.cat([x, e]), hidden + [1], False)


def dcnv2(case, x, e, layers, rank, stacked, hidden):
    x0 = torch.cat([x, e])
    xl = x0
    for index in range(layers):
        if rank is None:
            affine = case.linear(f"cross.{index}", xl, x0.numel())
        else:
            inner = case.linear(f"cross_down.{index}", xl, rank, bias=False)
            affine = case.linear(f"cross_up.{index}", inner, x0.numel())
        xl = x0 * affine + xl
    if not hidden:
        return case.linear("output.0", xl, 1)
    if stacked:
        return case.linear("output.0", case.mlp("deep", xl, hidden, True), 1)
    return case.linear("output.0", torch.cat([xl, case.mlp("deep", x0, hidden, True)]), 1)


def deepfm(case, x, e, hidden):
    rows = case.vectors(e)
    logit = sum(row[0] for row in rows)
    fields = [row[1:] for row in rows]
    if case.numeric:
        logit = logit + case.linear("first_order.0", x, 1)
        factors = case.weight("factors.weight", case.numeric, case.dims[0] - 1)
        fields = [factors[i] * x[i] for i in range(case.numeric)] + fields
    for i in range(len(fields)):
        for j in range(i):
            logit = logit + fields[i].dot(fields[j])
    return logit + case.mlp("deep", torch.cat(fields), hidden + [1], False)


def wide_deep(case, x, e, hidden):
    rows = case.vectors(e)
    logit = sum(row[0] for row in rows)
    if case.numeric:
        logit = logit + case.linear("wide.0", x, 1)
    deep = torch.cat([x] + [row[1:] for row in rows])
    return logit + case.mlp("deep", deep, hidden + [1], False)


def layer_norm(case, name, x):
    scale, shift = case.weight(f"{name}.weight", x.numel()), case.weight(f"{name}.bias", x.numel())
    return (x - x.mean()) / torch.sqrt(x.var(correction=0) + 1e-5) * scale + shift


def wukong(case, x, e, layers, fmb, lcb, rank, fmb_hidden, bottom, top):
    dim = case.dims[0]
    vectors = case.vectors(e)
    if case.numeric:
        vectors = [case.mlp("bottom", x, bottom + [dim], True)] + vectors
    for layer in range(layers):
        n = len(vectors)
        y = case.weight(f"fmb_projection.{layer}.weight", rank, n)
        dots = [[vectors[i].dot(vectors[j]) for j in range(n)] for i in range(n)]
        products = [sum(dots[i][j] * y[k][j] for j in range(n)) for i in range(n) for k in range(rank)]
        normed = layer_norm(case, f"fmb_norm.{layer}", torch.stack(products))
        made = list(torch.split(case.mlp(f"fmb_{layer}", normed, fmb_hidden + [fmb * dim], False), dim))
        compress = case.weight(f"lcb.{layer}.weight", lcb, n)
        made += [sum(compress[i][j] * vectors[j] for j in range(n)) for i in range(lcb)]
        kept = vectors
        if n != fmb + lcb:
            residual = case.weight(f"residual.{layer}.weight", fmb + lcb, n)
            kept = [sum(residual[i][j] * vectors[j] for j in range(n)) for i in range(fmb + lcb)]
        vectors = [layer_norm(case, f"norm.{layer}", made[i] + kept[i]) for i in range(fmb + lcb)]
    return case.mlp("top", torch.cat(vectors), top + [1], False)


def activation_unit(case, pair, value, target, hidden, activation):
    x = torch.cat([value, target, value - target, value * target])
    for layer, width in enumerate(hidden):
        x = case.linear(f"attention_{pair}.{layer}", x, width)
        if activation == "prelu":
            slope = case.weight(f"slopes_{pair}.{layer}.weight", width)
            x = torch.where(x > 0, x, slope * x)
        else:
            x = torch.sigmoid(x) if activation == "sigmoid" else torch.clamp(x, min=0)
    return case.linear(f"attention_{pair}.{len(hidden)}", x, 1)


def din(case, x, e, pairs, attention_hidden, activation, softmax, hidden):
    vectors, sums = case.vectors(e), []
    for index, (sequence, target) in enumerate(pairs):
        values, target = case.sequence(e, sequence), vectors[target]
        weights = [activation_unit(case, index, value, target, attention_hidden, activation) for value in values]
        if softmax and weights:
            total = sum(weight.exp() for weight in weights)
            weights = [weight.exp() / total for weight in weights]
        sums.append(sum((w * v for w, v in zip(weights, values)), torch.zeros_like(target)))
    return case.mlp("layers", torch.cat([x] + vectors + sums), hidden + [1], False)


def gate(case, name, x, e, names, hidden):
    """Mao et al. 2023, equations 2 and 3. A name is that of a number or of a vector: x0, e1."""
    width = x.numel() + e.numel()
    if not names:
        return 2 * torch.sigmoid(case.weight(f"{name}.weight", 1, width)[0])
    parts = [x[int(n[1:])].reshape(1) if n[0] == "x" else case.vectors(e)[int(n[1:])] for n in names]
    return 2 * torch.sigmoid(case.mlp(name, torch.cat(parts), [*hidden, width], False))


def finalmlp(case, x, e, first, second, heads, gates=None, outputs=1):
    """Mao et al. 2023, equations 7 to 9: the product of every two values of the same head."""
    streams = []
    for name, widths in [("first", first), ("second", second)]:
        values = torch.cat([x, e])
        if gates:
            values = values * gate(case, f"gate_{name}", x, e, gates[name], gates["hidden"])
        streams.append(case.mlp(name, values, widths, True))
    one, two = streams
    linear = case.linear("fusion_first.0", one, outputs) + case.linear("fusion_second.0", two, outputs, bias=False)
    products = case.weight("fusion.0.weight", outputs, one.numel() * two.numel() // heads)
    made = []
    for o in range(outputs):
        place, total = 0, linear[o]
        for head_one, head_two in zip(one.chunk(heads), two.chunk(heads)):
            for a in head_one:
                for b in head_two:
                    total, place = total + products[o][place] * a * b, place + 1
        made.append(total)
    return torch.stack(made)


def bst(case, x, e, pairs, layers, heads, ffn, hidden, causal=False):
    vectors, outputs = case.vectors(e), []
    for pair, (sequence, target) in enumerate(pairs):
        values, target = case.sequence(e, sequence), vectors[target]
        (length, dim, pad), real = case.sequences[sequence], len(values)
        position = case.weight(f"positions_{pair}.weight", length + 1, dim)
        first = 0 if pad == "right" else length - real
        tokens = [value + position[first + i] for i, value in enumerate(values)] + [target + position[length]]
        for layer in range(layers):
            query, key, value = ([case.linear(f"{name}_{pair}.{layer}", t, dim, bias=False) for t in tokens] for name in ["query", "key", "value"])
            width, made = dim // heads, []
            for i, token in enumerate(tokens):
                parts = []
                for h in range(heads):
                    part = slice(h * width, (h + 1) * width)
                    seen = key[: i + 1] if causal else key
                    fits = torch.stack([query[i][part].dot(k[part]) / width**0.5 for k in seen]).softmax(0)
                    parts.append(sum(fit * v[part] for fit, v in zip(fits, value)))
                mixed = case.linear(f"mix_{pair}.{layer}", torch.cat(parts), dim, bias=False)
                s = layer_norm(case, f"attention_norm_{pair}.{layer}", token + mixed)
                inner = functional.leaky_relu(case.linear(f"ffn_{pair}_{layer}.0", s, ffn))
                made.append(layer_norm(case, f"ffn_norm_{pair}.{layer}", s + case.linear(f"ffn_{pair}_{layer}.1", inner, dim)))
            tokens = made
        padding = [torch.zeros_like(target)] * (length - real)
        outputs += (tokens[:-1] + padding if pad == "right" else padding + tokens[:-1]) + tokens[-1:]
    return case.mlp("layers", torch.cat([x] + vectors + outputs), hidden + [1], False)


CASES = {
    "dlrm": (3, [4, 4, 4], lambda c, x, e: dlrm(c, x, e, [5], [6, 4])),
    "dlrm_without_numbers": (0, [4, 4, 4], lambda c, x, e: dlrm(c, x, e, [5], [6, 4])),
    "ffnn": (2, [4, 3, 1], lambda c, x, e: ffnn(c, x, e, [7, 3])),
    "dcnv2_stacked": (2, [3, 2], lambda c, x, e: dcnv2(c, x, e, 2, None, True, [6, 4])),
    "dcnv2_parallel_low_rank": (2, [3, 2], lambda c, x, e: dcnv2(c, x, e, 3, 2, False, [6, 4])),
    "dcnv2_cross_alone": (2, [3, 2], lambda c, x, e: dcnv2(c, x, e, 2, None, False, [])),
    "deepfm": (3, [4, 4, 4], lambda c, x, e: deepfm(c, x, e, [6, 4])),
    "deepfm_without_numbers": (0, [3, 3], lambda c, x, e: deepfm(c, x, e, [5])),
    "wide_deep": (2, [4, 1, 3], lambda c, x, e: wide_deep(c, x, e, [6, 4])),
    "wide_deep_without_numbers": (0, [4, 1, 3], lambda c, x, e: wide_deep(c, x, e, [5])),
    "wukong": (3, [4, 4, 4], lambda c, x, e: wukong(c, x, e, 2, 3, 2, 2, [7], [5], [6, 4])),
    "wukong_without_numbers": (0, [4, 4, 4], lambda c, x, e: wukong(c, x, e, 1, 2, 1, 2, [], [5], [6, 4])),
    "din": (2, [3, 4], lambda c, x, e: din(c, x, e, [(0, 1)], [5, 3], "prelu", False, [6, 4]), [(3, 4, "left")]),
    "din_softmax": (
        0,
        [3, 2],
        lambda c, x, e: din(c, x, e, [(0, 0), (1, 1)], [5], "sigmoid", True, [6]),
        [(3, 3, "right"), (2, 2, "left")],
    ),
    "bst": (2, [3, 4], lambda c, x, e: bst(c, x, e, [(0, 1)], 2, 2, 5, [6, 4]), [(3, 4, "left")]),
    "bst_two": (
        0,
        [3, 2],
        lambda c, x, e: bst(c, x, e, [(0, 0), (1, 1)], 1, 1, 3, [6]),
        [(3, 3, "right"), (2, 2, "left")],
    ),
    # Behind the others, whose values follow from their number.
    "bst_causal": (
        1,
        [3, 2],
        lambda c, x, e: bst(c, x, e, [(0, 0), (1, 1)], 2, 1, 3, [6], causal=True),
        [(3, 3, "right"), (3, 2, "left")],
    ),
    "finalmlp": (2, [4, 3], lambda c, x, e: finalmlp(c, x, e, [6, 4], [6], 1)),
    "finalmlp_gates": (
        2,
        [4, 3],
        lambda c, x, e: finalmlp(c, x, e, [4], [5, 6], 2, {"hidden": [5], "first": ["x0", "e1"], "second": []}),
    ),
    "finalmlp_without_numbers": (
        0,
        [3, 2],
        lambda c, x, e: finalmlp(c, x, e, [6], [3], 3, {"hidden": [], "first": ["e1"], "second": ["e0"]}),
    ),
}


class Dice(nn.Module):
    """Zhou et al. 2018, equation 5."""

    def __init__(self, width):
        super().__init__()
        self.alpha = nn.Parameter(torch.zeros(width))
        self.norm = nn.BatchNorm1d(width, eps=1e-8, affine=False)

    def forward(self, x):
        p = torch.sigmoid(self.norm(x))
        return p * x + (1 - p) * self.alpha * x


def din_dice(seed, attention_hidden, hidden):
    """A DIN whose unit has Dice, over the real positions of all samples together: in training, and scored after it."""
    case = Case(seed, 2, [3, 4], [(3, 4, "left")])
    dices = [Dice(width).double() for width in attention_hidden]
    for layer, dice in enumerate(dices):
        dice.alpha = nn.Parameter(case.weight(f"dice_0.{layer}.weight", attention_hidden[layer]).detach())
        case.weights[f"dice_0.{layer}.weight"] = dice.alpha
    given = {f"dice_0.{i}.{k[5:]}": v for i, d in enumerate(dices) for k, v in d.state_dict().items() if "running" in k}
    given = {name: {"shape": list(v.shape), "values": flat(v)} for name, v in given.items()}

    def logits():
        of_sample = [(case.sequence(e, 0), case.vectors(e)[1]) for e in case.e]
        pairs = [torch.cat([v, t, v - t, v * t]) for values, t in of_sample for v in values]
        x = torch.stack(pairs)
        for layer, width in enumerate(attention_hidden):
            x = dices[layer](torch.stack([case.linear(f"attention_0.{layer}", row, width) for row in x]))
        weights = iter([case.linear(f"attention_0.{len(attention_hidden)}", row, 1) for row in x])
        sums = [sum((next(weights) * v for v in values), torch.zeros_like(t)) for values, t in of_sample]
        rows = [torch.cat([x, *case.vectors(e), s]) for x, e, s in zip(case.x, case.e, sums)]
        return torch.stack([case.mlp("layers", row, hidden + [1], False) for row in rows]).squeeze(1)

    made = logits()
    loss = nn.BCEWithLogitsLoss()(made, case.labels)
    loss.backward()
    buffers = {f"dice_0.{i}.{k[5:]}": flat(v) for i, d in enumerate(dices) for k, v in d.state_dict().items() if "running" in k}
    [dice.eval() for dice in dices]
    weights = {name: {"shape": list(w.shape), "values": flat(w)} for name, w in case.weights.items()}
    return {
        "numeric": flat(case.x),
        "embeddings": flat(case.e),
        "labels": flat(case.labels),
        "weights": {**weights, **given},
        "logits": flat(made),
        "loss": loss.item(),
        "gradients": {**{n: flat(w.grad) for n, w in case.weights.items()}, "embeddings": flat(case.e.grad)},
        "buffers": buffers,
        "scored": flat(logits()),
    }


def plr(case, x, embedded, frequencies, dim):
    """Gorishniy et al. 2022: vectors in place of the embedded numbers."""
    c = case.weight("numeric_embedding.frequencies", len(embedded), frequencies)
    w = case.weight("numeric_embedding.weight", len(embedded), 2 * frequencies, dim)
    b = case.weight("numeric_embedding.bias", len(embedded), dim)
    values = []
    for column in range(case.numeric):
        if column not in embedded:
            values.append(x[column].reshape(1))
            continue
        i = embedded.index(column)
        v = 2 * torch.pi * c[i] * x[column]
        values.append(functional.relu(torch.cat([torch.sin(v), torch.cos(v)]) @ w[i] + b[i]))
    return torch.cat(values)


# Of six numbers, 0, 1 and 5 are embedded: 2 is an indicator, 3 and 4 are a vector.
EMBEDDED = {
    "dlrm_plr": (6, [4, 4, 4], lambda c, x, e: dlrm(c, plr(c, x, [0, 1, 5], 2, 3), e, [5], [6, 4])),
    "dcnv2_plr": (6, [3, 2], lambda c, x, e: dcnv2(c, plr(c, x, [0, 1, 5], 2, 3), e, 2, None, True, [6, 4])),
}


def shared_bottom(case, x, e, sizes, bottom, tower):
    x = case.mlp("bottom", torch.cat([x, e]), bottom, activate_last=True)
    return [case.mlp(f"tower_{k}", x, [*tower, size], activate_last=False) for k, size in enumerate(sizes)]


def gated(case, gate, x, experts):
    """Ma et al. 2018, equations 6 and 7."""
    shares = torch.softmax(case.weight(f"{gate}.weight", len(experts), x.numel()) @ x, 0)
    return sum(share * expert for share, expert in zip(shares, experts))


def mmoe(case, x, e, sizes, experts, hidden, tower):
    x = torch.cat([x, e])
    experts = [case.mlp(f"expert_{index}", x, hidden, activate_last=True) for index in range(experts)]
    mixes = [gated(case, f"gate.{k}", x, experts) for k in range(len(sizes))]
    return [case.mlp(f"tower_{k}", mixes[k], [*tower, size], activate_last=False) for k, size in enumerate(sizes)]


def ple(case, x, e, sizes, levels, shared_experts, task_experts, hidden, tower):
    """Tang et al. 2020, figure 5."""
    shared = torch.cat([x, e])
    own = [shared] * len(sizes)
    for level in range(levels):
        def experts(name, x, count):
            return [case.mlp(f"level_{level}_{name}_{index}", x, hidden, activate_last=True) for index in range(count)]

        of_all = experts("shared", shared, shared_experts)
        of_each = [experts(f"target_{k}", x, task_experts) for k, x in enumerate(own)]
        own = [gated(case, f"level_{level}_gate.{k}", x, of_each[k] + of_all) for k, x in enumerate(own)]
        if level + 1 < levels:
            shared = gated(case, f"level_{level}_shared_gate.0", shared, sum(of_each, []) + of_all)
    return [case.mlp(f"tower_{k}", own[k], [*tower, size], activate_last=False) for k, size in enumerate(sizes)]


def ffnn_of_several(case, x, e, sizes, hidden):
    return torch.split(case.mlp("layers", torch.cat([x, e]), [*hidden, sum(sizes)], activate_last=False), sizes)


# Targets by kind, with their outputs, labels and losses of a sample. `given` is the chance of the target before.
def clicked(o, y, given):
    return nn.BCELoss(reduction="none")(torch.sigmoid(o) * given, y).sum()


TARGETS = {
    "click": (1, [1.0, 0.0, 1.0, 0.0, 1.0], lambda o, y, _: nn.BCEWithLogitsLoss()(o, y.reshape(1))),
    "given": (1, [1.0, 0.0, 0.0, 0.0, 1.0], lambda o, y, given: clicked(o, y.reshape(1), given)),
    "mse": (1, [0.5, -2.0, 3.25, 1.0, 0.0], lambda o, y, _: nn.MSELoss()(o, y.reshape(1))),
    "huber": (1, [0.5, -8.0, 3.25, 9.0, 0.0], lambda o, y, _: nn.HuberLoss(delta=1.5)(o, y.reshape(1))),
    "poisson": (1, [0.0, 2.0, 1.0, 0.0, 5.0], lambda o, y, _: nn.PoissonNLLLoss(full=False)(o, y.reshape(1))),
    "classes": (3, [2.0, 0.0, 1.0, 1.0, 2.0], lambda o, y, _: nn.CrossEntropyLoss()(o, y.long())),
}

# Network, its targets with the weights of their losses, and the weights of the samples.
SEVERAL = {
    "shared_bottom": (lambda c, x, e, s: shared_bottom(c, x, e, s, [6], [4]), {"mse": 0.5, "click": 2.0}, None),
    "esmm": (lambda c, x, e, s: shared_bottom(c, x, e, s, [], [5]), {"click": 1.0, "given": 1.0}, None),
    "mmoe": (lambda c, x, e, s: mmoe(c, x, e, s, 3, [5, 4], [4]), {"click": 1.0, "poisson": 0.25}, None),
    "ple": (lambda c, x, e, s: ple(c, x, e, s, 2, 1, 2, [4], [3]), {"click": 1.0, "classes": 0.5}, None),
    "losses": (
        lambda c, x, e, s: ffnn_of_several(c, x, e, s, [6]),
        {"huber": 1.0, "poisson": 0.5, "classes": 1.0, "mse": 0.125},
        [1.0, 0.0, 2.5, 0.5, 3.0],
    ),
    "finalmlp_of_several": (
        lambda c, x, e, s: torch.split(finalmlp(c, x, e, [4], [6], 2, outputs=sum(s)), s),
        {"click": 1.0, "classes": 0.5},
        None,
    ),
}


def flat(tensor):
    return tensor.detach().reshape(-1).tolist()


def fixture(seed, numeric, dims, network, sequences=()):
    case = Case(seed, numeric, dims, sequences)
    logits = torch.cat([network(case, x, e).reshape(1) for x, e in zip(case.x, case.e)])
    loss = nn.BCEWithLogitsLoss()(logits, case.labels)
    loss.backward()
    gradients = {name: flat(weight.grad) for name, weight in case.weights.items()}
    return {
        "numeric": flat(case.x),
        "embeddings": flat(case.e),
        "labels": flat(case.labels),
        "weights": {name: {"shape": list(w.shape), "values": flat(w)} for name, w in case.weights.items()},
        "logits": flat(logits),
        "loss": loss.item(),
        "gradients": {**gradients, "embeddings": flat(case.e.grad)},
    }


ACTIVATIONS = {
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
    "dice": Dice,
}
NORMS = {"none": None, "layer": nn.LayerNorm, "batch": nn.BatchNorm1d}
# The stack of a feed-forward network over 1 number and 2 + 1 values of vectors: its widths.
WIDTHS = [4, 3, 2, 1]


def mlp_layers(seed, activation, norm):
    """A feed-forward network by PyTorch's modules: values in training, running averages after it, logits by these."""
    case = Case(seed, 1, [2, 1], [])
    layers, names = [], {}
    for index, (inputs, outputs) in enumerate(zip(WIDTHS, WIDTHS[1:])):
        layers.append(nn.Linear(inputs, outputs))
        names[len(layers) - 1] = f"layers.{index}"
        if index + 2 < len(WIDTHS):
            if NORMS[norm]:
                layers.append(NORMS[norm](outputs))
                names[len(layers) - 1] = f"layers_norm.{index}"
            layers.append(Dice(outputs) if activation == "dice" else ACTIVATIONS[activation]())
            names[len(layers) - 1] = f"layers_dice.{index}"
    net = nn.Sequential(*layers).double()
    name = lambda key: f"{names[int(key.split('.')[0])]}.{key.split('.')[-1].replace('alpha', 'weight')}"
    for parameter in net.parameters():
        parameter.data = case.values(*parameter.shape)
    state = {k: v for k, v in net.state_dict().items() if not k.endswith("num_batches_tracked")}
    given = {name(key): {"shape": list(v.shape), "values": flat(v)} for key, v in state.items()}
    logits = net(torch.cat([case.x, case.e], 1)).squeeze(1)
    loss = nn.BCEWithLogitsLoss()(logits, case.labels)
    loss.backward()
    gradients = {name(key): flat(parameter.grad) for key, parameter in net.named_parameters()}
    buffers = {name(key): flat(v) for key, v in net.state_dict().items() if "running" in key}
    scored = net.eval()(torch.cat([case.x, case.e], 1)).squeeze(1)
    return {
        "activation": activation,
        "norm": norm,
        "numeric": flat(case.x),
        "embeddings": flat(case.e),
        "labels": flat(case.labels),
        "weights": given,
        "logits": flat(logits),
        "loss": loss.item(),
        "gradients": {**gradients, "embeddings": flat(case.e.grad)},
        "buffers": buffers,
        "scored": flat(scored),
    }


def fixture_of_several(seed, network, targets, weights):
    """The loss of a sample is the sum over the targets; that of the batch is the mean by the weights of the samples."""
    case = Case(seed, 2, [3, 2], [])
    sizes = [TARGETS[name][0] for name in targets]
    labels = torch.tensor([TARGETS[name][1] for name in targets], dtype=torch.float64).T
    counts = torch.tensor(weights or [1.0] * BATCH, dtype=torch.float64)
    loss, outputs = 0.0, []
    for x, e, of_sample, count in zip(case.x, case.e, labels, counts):
        given = torch.ones(1, dtype=torch.float64)
        for (name, factor), o, y in zip(targets.items(), network(case, x, e, sizes), of_sample):
            loss = loss + count * factor * TARGETS[name][2](o, y, given) / counts.sum()
            outputs.append(torch.logit(torch.sigmoid(o) * given) if name == "given" else o)
            given = torch.sigmoid(o)
    loss.backward()
    gradients = {name: flat(weight.grad) for name, weight in case.weights.items()}
    return {
        "numeric": flat(case.x),
        "embeddings": flat(case.e),
        "labels": flat(labels),
        "sample_weights": weights or [],
        "weights": {name: {"shape": list(w.shape), "values": flat(w)} for name, w in case.weights.items()},
        "logits": flat(torch.cat(outputs)),
        "loss": loss.item(),
        "gradients": {**gradients, "embeddings": flat(case.e.grad)},
    }


class Net(nn.Module):
    """Two linear layers over numbers and vectors, 2 + 3 values."""

    def __init__(self, outputs):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, outputs))

    def forward(self, numeric, embeddings):
        return self.layers(torch.cat([numeric, embeddings], 1))


class DropoutNet(Net):
    """The same with dropout of logits, so that they show the draws. The file was made by hand from that of `net`."""

    def __init__(self):
        super().__init__(1)

    def forward(self, numeric, embeddings):
        logits = self.layers(torch.cat([numeric, embeddings], 1))
        return torch.dropout(logits, 0.5, self.training)


class NormedNet(nn.Module):
    """A linear layer over 1 + 2 normed values, with every kind of buffer."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.linear = nn.Linear(3, 1)
        # These never change: one is not finite, one is beyond the integers of f64, one repeats a value three times.
        self.register_buffer("mask", torch.tensor([0.0, float("-inf"), float("nan")]))
        self.register_buffer("salt", torch.tensor(2**53 + 1))
        self.register_buffer("offset", torch.zeros(1).expand(3))
        # A new tensor after each step. Scoring changes it too.
        self.register_buffer("seen", torch.tensor(0))
        self.register_buffer("scored", torch.tensor(0))

    def forward(self, numeric, embeddings):
        if self.training:
            self.seen = self.seen + 1
        else:
            self.scored += 1
        inputs = torch.cat([numeric, embeddings], 1) + self.offset
        return self.linear(self.norm(inputs)) + self.mask[:2].exp().sum() - 1


def modules():
    nets = {"net": lambda: Net(1), "wide_net": lambda: Net(2), "normed_net": NormedNet, "dropout_net": DropoutNet}
    for seed, (name, net) in enumerate(nets.items(), start=1):
        torch.manual_seed(seed)
        file = FOLDER / f"{name}.pt"
        torch.jit.script(net()).save(str(file))
        print(hashlib.sha256(file.read_bytes()).hexdigest(), file.name)


def main():
    if sys.argv[1:] == ["modules"]:
        return modules()
    for seed, (name, case) in enumerate(CASES.items()):
        values = fixture(seed, *case)
        (FOLDER / f"{name}.json").write_text(json.dumps(values, separators=(",", ":")) + "\n")
    for seed, (name, case) in enumerate(EMBEDDED.items(), start=200):
        (FOLDER / f"{name}.json").write_text(json.dumps(fixture(seed, *case), separators=(",", ":")) + "\n")
    styles = [(activation, norm) for activation in ACTIVATIONS for norm in NORMS]
    # A layer norm of two units gives ±1, whose deviation over a batch, which Dice divides by, is rounding.
    styles.remove(("dice", "layer"))
    values = [mlp_layers(100 + seed, *style) for seed, style in enumerate(styles)]
    (FOLDER / "din_dice.json").write_text(json.dumps(din_dice(50, [5, 3], [6]), separators=(",", ":")) + "\n")
    (FOLDER / "mlp_layers.json").write_text(json.dumps(values, separators=(",", ":")) + "\n")
    for seed, (name, case) in enumerate(SEVERAL.items(), start=100):
        values = fixture_of_several(seed, *case)
        (FOLDER / f"{name}.json").write_text(json.dumps(values, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
