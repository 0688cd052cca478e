"""The steps of `cargo bench -p zagros-dense-worker --bench step` by PyTorch in Python: µs of processor time a sample.

    python scripts/step_peers.py [SAMPLES] [ROUNDS]

One thread, 13 numbers and 26 vectors of 16, Adam; the same layers, without what a trainer adds.
"""

import sys
import time

import torch
from torch import nn

NUMERIC, FEATURES, DIM = 13, 26, 16
WIDTH = NUMERIC + FEATURES * DIM


def mlp(inputs, *widths):
    layers = []
    for outputs in widths:
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
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


def least_step(net, samples, rounds):
    x, labels = torch.rand(samples, NUMERIC), (torch.arange(samples) % 4 == 0).float()
    optimizer, loss = torch.optim.Adam(net.parameters()), nn.BCEWithLogitsLoss()
    least = float("inf")
    for turn in range(rounds + 2):
        e = torch.rand(samples, FEATURES * DIM).requires_grad_()
        started = time.process_time()
        optimizer.zero_grad()
        loss(net(x, e).squeeze(1), labels).backward()
        optimizer.step()
        if turn > 1:
            least = min(least, time.process_time() - started)
    return 1e6 * least / samples


def main():
    samples, rounds = [int(word) for word in sys.argv[1:]] or (2048, 10)
    torch.set_num_threads(1)
    for net in [Ffnn, Dlrm, Dcnv2, DeepFm, WideDeep, Wukong]:
        print(f"{net.__name__.lower():<18} {least_step(net(), samples, rounds):7.3f}")


if __name__ == "__main__":
    main()
