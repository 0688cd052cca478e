"""Processor time of a step of the dense network, here and in PyTorch in Python, in turns: µs a sample.

    python scripts/step_peers.py [SAMPLES] [TURNS]

It builds and starts `cargo bench -p zagros-dense-worker --bench step`, and lets it and PyTorch make steps of the same network one after
the other, turn by turn. So both see the same machine, however busy it is. One thread each, eager, 13 numbers and 26 vectors of 16, Adam; the
same layers, without what a trainer adds. Networks of sequences have 25 vectors and a sequence of 50. The columns: medians over the turns,
and the ratio of the two times of a turn (median, least and greatest). Rows with "autograd" are the networks with leaky ReLU, which have
no backward of their own here.
"""

import statistics
import subprocess
import sys
import time

import torch
from torch import nn
from torch.nn import functional

LENGTH = 50
NUMERIC, FEATURES, DIM = 13, 26, 16
WIDTH = NUMERIC + FEATURES * DIM


ACTIVATION = nn.ReLU


def mlp(inputs, *widths):
    layers = []
    for outputs in widths:
        layers += [nn.Linear(inputs, outputs), ACTIVATION()]
        inputs = outputs
    return layers


def logit(inputs, *widths):
    return nn.Sequential(*mlp(inputs, *widths), nn.Linear(widths[-1], 1))


class Ffnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = logit(WIDTH, 512, 256)

    def forward(self, x, e):
        return self.net(torch.cat([x, e], 1))


class Dlrm(nn.Module):
    def __init__(self):
        super().__init__()
        self.bottom = nn.Sequential(*mlp(NUMERIC, 512, 256, DIM))
        vectors = FEATURES + 1
        self.top = logit(DIM + vectors * (vectors - 1) // 2, 512, 256)
        self.pairs = torch.tensor([i * vectors + j for i in range(vectors) for j in range(i)])

    def forward(self, x, e):
        d = self.bottom(x)
        v = torch.cat([d.unsqueeze(1), e.view(-1, FEATURES, DIM)], 1)
        pairs = torch.bmm(v, v.transpose(1, 2)).flatten(1).index_select(1, self.pairs)
        return self.top(torch.cat([d, pairs], 1))


class Dcnv2(nn.Module):
    def __init__(self):
        super().__init__()
        self.cross = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.deep = logit(WIDTH, 512, 256)

    def forward(self, x, e):
        x0 = xl = torch.cat([x, e], 1)
        for cross in self.cross:
            xl = xl + x0 * cross(xl)
        return self.deep(xl)


class DeepFm(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.factors = nn.Linear(NUMERIC, 1), nn.Parameter(torch.randn(NUMERIC, DIM - 1) * 0.01)
        self.deep = logit((NUMERIC + FEATURES) * (DIM - 1), 512, 256)

    def forward(self, x, e):
        rows = e.view(-1, FEATURES, DIM)
        f = torch.cat([x.unsqueeze(2) * self.factors, rows[:, :, 1:]], 1)
        second = 0.5 * (f.sum(1).square() - f.square().sum(1)).sum(1, keepdim=True)
        return rows[:, :, 0].sum(1, keepdim=True) + self.first(x) + second + self.deep(f.flatten(1))


class WideDeep(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide = nn.Linear(NUMERIC, 1)
        self.deep = logit(NUMERIC + FEATURES * (DIM - 1), 512, 256)

    def forward(self, x, e):
        rows = e.view(-1, FEATURES, DIM)
        deep = self.deep(torch.cat([x, rows[:, :, 1:].flatten(1)], 1))
        return rows[:, :, 0].sum(1, keepdim=True) + self.wide(x) + deep


class WukongLayer(nn.Module):
    def __init__(self, vectors):
        super().__init__()
        self.y, self.norm = nn.Linear(vectors, 8, bias=False), nn.LayerNorm(vectors * 8)
        self.mlp = nn.Sequential(*mlp(vectors * 8, 256), nn.Linear(256, 8 * DIM))
        self.lcb = nn.Linear(vectors, 8, bias=False)
        self.residual = nn.Linear(vectors, 16, bias=False) if vectors != 16 else None
        self.last = nn.LayerNorm(DIM)

    def forward(self, v):
        columns = v.transpose(1, 2)
        products = torch.bmm(v, self.y(columns)).flatten(1)
        fmb = self.mlp(self.norm(products)).view(-1, 8, DIM)
        kept = self.residual(columns).transpose(1, 2) if self.residual else v
        return self.last(torch.cat([fmb, self.lcb(columns).transpose(1, 2)], 1) + kept)


class Wukong(nn.Module):
    def __init__(self):
        super().__init__()
        self.bottom = nn.Sequential(*mlp(NUMERIC, 512, 256, DIM))
        self.layers = nn.Sequential(WukongLayer(FEATURES + 1), WukongLayer(16), WukongLayer(16))
        self.top = logit(16 * DIM, 512, 256)

    def forward(self, x, e):
        v = torch.cat([self.bottom(x).unsqueeze(1), e.view(-1, FEATURES, DIM)], 1)
        return self.top(self.layers(v).flatten(1))


class FinalMlp(nn.Module):
    HEADS = 16

    def __init__(self):
        super().__init__()
        self.first, self.second = (nn.Sequential(*mlp(WIDTH, 512, 256)) for _ in range(2))
        self.of_first, self.of_second = nn.Linear(256, 1), nn.Linear(256, 1, bias=False)
        self.product = nn.Parameter(torch.randn(self.HEADS, 256 // self.HEADS, 256 // self.HEADS) * 0.01)

    def forward(self, x, e):
        x = torch.cat([x, e], 1)
        one, two = self.first(x), self.second(x)
        heads = lambda x: x.view(len(x), self.HEADS, -1).transpose(0, 1)
        both = (torch.bmm(heads(one), self.product) * heads(two)).sum((0, 2)).unsqueeze(1)
        return self.of_first(one) + self.of_second(two) + both


def sequence(e):
    """The vectors side by side, the positions `[batch, LENGTH, DIM]`, which of them are real, and the target."""
    vectors, end = e[:, : 25 * DIM], 25 * DIM + LENGTH * DIM
    real = torch.arange(LENGTH) + e[:, end:].detach() >= LENGTH
    return vectors, e[:, 25 * DIM : end].view(-1, LENGTH, DIM), real, vectors[:, 24 * DIM :]


class Din(nn.Module):
    def __init__(self):
        super().__init__()
        units = [nn.Linear(4 * DIM, 32), nn.PReLU(32), nn.Linear(32, 16), nn.PReLU(16), nn.Linear(16, 1)]
        self.unit = nn.Sequential(*units)
        self.layers = logit(NUMERIC + 26 * DIM, 512, 256)

    def forward(self, x, e):
        vectors, values, real, target = sequence(e)
        target = target.unsqueeze(1).expand_as(values)
        pairs = torch.cat([values, target, values - target, values * target], 2)
        weights = self.unit(pairs.flatten(0, 1)).view(-1, LENGTH) * real
        return self.layers(torch.cat([x, vectors, torch.bmm(weights.unsqueeze(1), values).squeeze(1)], 1))


class Bst(nn.Module):
    HEADS = 2

    def __init__(self):
        super().__init__()
        self.positions = nn.Parameter(torch.randn(LENGTH + 1, DIM) * 0.01)
        self.qkv, self.mix = nn.Linear(DIM, 3 * DIM, bias=False), nn.Linear(DIM, DIM, bias=False)
        self.ffn = nn.Sequential(nn.Linear(DIM, 64), nn.LeakyReLU(), nn.Linear(64, DIM))
        self.norms = nn.ModuleList(nn.LayerNorm(DIM) for _ in range(2))
        self.layers = logit(NUMERIC + (25 + LENGTH + 1) * DIM, 512, 256)

    def forward(self, x, e):
        vectors, values, real, target = sequence(e)
        x0 = torch.cat([values, target.unsqueeze(1)], 1) + self.positions
        real = torch.cat([real, torch.ones(len(x), 1, dtype=torch.bool)], 1)
        parts = [p.view(len(x), -1, self.HEADS, DIM // self.HEADS).transpose(1, 2) for p in self.qkv(x0).chunk(3, 2)]
        made = functional.scaled_dot_product_attention(*parts, attn_mask=real[:, None, None, :])
        s = self.norms[0](x0 + self.mix(made.transpose(1, 2).flatten(2)))
        f = self.norms[1](s + self.ffn(s)) * real.unsqueeze(2)
        return self.layers(torch.cat([x, vectors, f.flatten(1)], 1))


class Mmoe(nn.Module):
    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(nn.Sequential(*mlp(WIDTH, 128)) for _ in range(4))
        self.gates = nn.ModuleList(nn.Linear(WIDTH, 4, bias=False) for _ in range(2))
        self.towers = nn.ModuleList(logit(128, 64) for _ in range(2))

    def forward(self, x, e):
        x = torch.cat([x, e], 1)
        experts = torch.stack([expert(x) for expert in self.experts], 1)
        mixes = [torch.bmm(gate(x).softmax(1).unsqueeze(1), experts).squeeze(1) for gate in self.gates]
        return torch.cat([tower(mix) for tower, mix in zip(self.towers, mixes)], 1)


class Ple(nn.Module):
    """One level of two shared experts and two of each label."""

    def __init__(self):
        super().__init__()
        self.shared = nn.ModuleList(nn.Sequential(*mlp(WIDTH, 128)) for _ in range(2))
        self.own = nn.ModuleList(nn.Sequential(*mlp(WIDTH, 128)) for _ in range(4))
        self.gates = nn.ModuleList(nn.Linear(WIDTH, 4, bias=False) for _ in range(2))
        self.towers = nn.ModuleList(logit(128, 64) for _ in range(2))

    def forward(self, x, e):
        x = torch.cat([x, e], 1)
        shared, own = [expert(x) for expert in self.shared], [expert(x) for expert in self.own]
        made = []
        for label, (gate, tower) in enumerate(zip(self.gates, self.towers)):
            experts = torch.stack(own[2 * label : 2 * label + 2] + shared, 1)
            made.append(tower(torch.bmm(gate(x).softmax(1).unsqueeze(1), experts).squeeze(1)))
        return torch.cat(made, 1)


def leaky(network):
    """The network with leaky ReLU."""

    def make():
        global ACTIVATION
        ACTIVATION = nn.LeakyReLU
        made = network()
        ACTIVATION = nn.ReLU
        return made

    return make


# By the names of the bench: the network, and its labels.
NETWORKS = {
    "ffnn": (Ffnn, 1),
    "ffnn, autograd": (leaky(Ffnn), 1),
    "dlrm": (Dlrm, 1),
    "dlrm, autograd": (leaky(Dlrm), 1),
    "dcnv2": (Dcnv2, 1),
    "deepfm": (DeepFm, 1),
    "wide_deep": (WideDeep, 1),
    "din": (Din, 1),
    "bst": (Bst, 1),
    "mmoe": (Mmoe, 2),
    "ple": (Ple, 2),
    "wukong": (Wukong, 1),
    "finalmlp": (FinalMlp, 1),
}


class Peer:
    """A network in PyTorch, and its batch."""

    def __init__(self, name, samples):
        make, labels = NETWORKS[name]
        self.net, width = make(), WIDTH - NUMERIC
        self.optimizer, self.loss = torch.optim.Adam(self.net.parameters()), nn.BCEWithLogitsLoss()
        self.x = torch.rand(samples, NUMERIC)
        if name in ["din", "bst"]:
            counts = (torch.arange(samples) % (LENGTH + 1)).float().unsqueeze(1)
            self.e = torch.cat([torch.rand(samples, (25 + LENGTH) * DIM), counts], 1)
        else:
            self.e = torch.rand(samples, width)
        self.labels = (torch.arange(samples) % 4 == 0).float().unsqueeze(1).expand(samples, labels)

    def steps(self, count):
        """The processor time of each step, µs."""
        times = []
        for _ in range(count):
            e = self.e.clone().requires_grad_()
            started = time.thread_time()
            self.optimizer.zero_grad()
            self.loss(self.net(self.x, e), self.labels).backward()
            self.optimizer.step()
            times.append(1e6 * (time.thread_time() - started))
        return times


def main():
    samples, turns = [int(word) for word in sys.argv[1:]] or (2048, 8)
    torch.set_num_threads(1)
    command = ["cargo", "bench", "-q", "-p", "zagros-dense-worker", "--bench", "step", "--", "--serve"]
    bench = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def here(name, count):
        bench.stdin.write(f"{samples} {count} {name}\n")
        bench.stdin.flush()
        return [float(word) for word in bench.stdout.readline().split()]

    print(f"µs of processor time a sample, {turns} turns of 3 steps on {samples} samples, torch {torch.__version__}")
    print(f"{'network':<16} {'here':>7} {'PyTorch':>8}   PyTorch / here")
    for name in NETWORKS:
        peer = Peer(name, samples)
        # The first steps only warm up.
        here(name, 2), peer.steps(2)
        both = [(statistics.median(here(name, 3)), statistics.median(peer.steps(3))) for _ in range(turns)]
        ours, theirs = ([pair[side] / samples for pair in both] for side in [0, 1])
        ratios = [their / our for our, their in zip(ours, theirs)]
        middle, low, high = statistics.median(ratios), min(ratios), max(ratios)
        line = f"{name:<16} {statistics.median(ours):7.2f} {statistics.median(theirs):8.2f}   {middle:.2f} ({low:.2f}–{high:.2f})"
        print(line, flush=True)
    bench.stdin.close()
    sys.exit(bench.wait())


if __name__ == "__main__":
    main()
