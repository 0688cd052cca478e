#!/usr/bin/env python3
"""`zagros.EmbeddingBags` against the network alone, `nn.EmbeddingBag` and the native trainer: samples/s of DLRM, paired by round.

    target/python/venv/bin/python scripts/bench_python.py [--quick] [--rounds 5] [--batches 30] [--rows 100000]

Criteo-shaped rows: 26 features with Zipf ids, dim 16, 13 numbers, batches of 4,096. One thread of torch. In each round, in turn:
`network` trains the dense network on fixed vectors, with their gradients; `zagros` has the rows on two local servers, staleness 4,
looked up ahead; `torch` has `nn.EmbeddingBag(sparse=True)` and `torch.optim.Adagrad`; `native` is `zagros up` with two servers on the
same rows in a text file and the same network as TorchScript, staleness 4. The table has medians, and medians of each round's ratios.
"""

import argparse
import hashlib
import json
import os
import pathlib
import statistics
import subprocess
import tempfile
import time
import warnings

import torch
from torch import Tensor, nn

import zagros

FEATURES, DIM, NUMBERS, BATCH = 26, 16, 13, 4096
PROGRAM = pathlib.Path(__file__).resolve().parent.parent / "target" / "release" / "zagros"
JOB = """
[data]\nformat = "criteo"\ntrain = "rows.txt"
[embedding]\ndim = 16\noptimizer = {{ kind = "adagrad", lr = 0.02 }}\ninit = {{ kind = "uniform", bound = 0.01 }}
[model]\nkind = "torchscript"\nfile = "net.pt"\nsha256 = "{sha256}"\ntrust = true
[optimizer]\nkind = "adam"\nlr = 0.001
[train]\nbatch_size = 4096\nepochs = 1\nstaleness = 4\nthreads = 1
[cluster]\nservers = 2
"""


class Dlrm(nn.Module):
    """Numbers ``[batch, 13]`` and vectors ``[batch, 26 * 16]`` to logits ``[batch]``: products of all pairs between two MLPs."""

    def __init__(self) -> None:
        super().__init__()
        self.bottom = nn.Sequential(nn.Linear(NUMBERS, 64), nn.ReLU(), nn.Linear(64, DIM), nn.ReLU())
        pairs = (FEATURES + 1) * FEATURES // 2
        self.top = nn.Sequential(nn.Linear(pairs + DIM, 64), nn.ReLU(), nn.Linear(64, 1))
        self.register_buffer("pairs", torch.tril_indices(FEATURES + 1, FEATURES + 1, -1), persistent=False)

    def forward(self, numbers: Tensor, vectors: Tensor) -> Tensor:
        bottom = self.bottom(numbers)
        all_vectors = torch.cat([bottom.unsqueeze(1), vectors.view(-1, 26, 16)], dim=1)
        products = torch.bmm(all_vectors, all_vectors.transpose(1, 2))
        return self.top(torch.cat([bottom, products[:, self.pairs[0], self.pairs[1]]], dim=1)).squeeze(1)


def batches(count: int, rows: int) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Numbers ``[4096, 13]``, ids ``[26, 4096]`` with a Zipf law over ``rows`` of each feature, labels ``[4096]``."""
    chance = torch.Generator().manual_seed(1)
    law = torch.arange(1, rows + 1, dtype=torch.float64).pow(-1.1).cumsum(0)
    made = []
    for _ in range(count):
        ids = torch.searchsorted(law, torch.rand(FEATURES, BATCH, generator=chance, dtype=torch.float64) * law[-1])
        numbers = torch.randint(0, 1000, (BATCH, NUMBERS), generator=chance).float()
        made.append((numbers, ids, (torch.rand(BATCH, generator=chance) < 0.25 + 0.5 * (ids[0] % 2)).float()))
    return made


def step(net: nn.Module, optimizers: list[torch.optim.Optimizer], numbers: Tensor, vectors: Tensor, labels: Tensor) -> None:
    loss = nn.functional.binary_cross_entropy_with_logits(net(numbers.log1p(), vectors), labels)
    for optimizer in optimizers:
        optimizer.zero_grad()
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()


def native(folder: pathlib.Path) -> float:
    """Samples/s of the trainer, as its summary says."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([PROGRAM, "up", "job.toml"], cwd=folder, env=environment, check=True, capture_output=True)
    newest = max(folder.glob("runs/*/summary.json"), key=os.path.getmtime)
    return float(json.loads(newest.read_text())["samples_per_second"])


def prepare(folder: pathlib.Path, data: list[tuple[Tensor, Tensor, Tensor]]) -> None:
    """The same rows and the same network as files."""
    torch.jit.script(Dlrm()).save(str(folder / "net.pt"))
    with open(folder / "rows.txt", "w") as out:
        for numbers, ids, labels in data:
            for row in torch.cat([labels.long().unsqueeze(0), numbers.long().T, ids]).T.tolist():
                out.write("\t".join([*map(str, row[: NUMBERS + 1]), *(f"{id:08x}" for id in row[NUMBERS + 1 :])]) + "\n")
    (folder / "job.toml").write_text(JOB.format(sha256=hashlib.sha256((folder / "net.pt").read_bytes()).hexdigest()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round of three batches: does it run?")
    for name, default in (("--rounds", 5), ("--batches", 30), ("--rows", 100_000)):
        parser.add_argument(name, type=int, default=default)
    args = parser.parse_args()
    rounds, count = (1, 3) if args.quick else (args.rounds, args.batches)
    warnings.filterwarnings("ignore", "Sparse invariant checks")
    torch.set_num_threads(1)
    data, names = batches(count, args.rows), [f"C{index}" for index in range(FEATURES)]
    nets = [Dlrm() for _ in range(3)]
    dense = [[torch.optim.Adam(net.parameters(), lr=0.001)] for net in nets]
    fixed = torch.randn(BATCH, FEATURES * DIM).mul_(0.01).requires_grad_()
    bags = nn.ModuleList(nn.EmbeddingBag(args.rows, DIM, mode="sum", sparse=True) for _ in names)
    dense[2].append(torch.optim.Adagrad(bags.parameters(), lr=0.02))
    layer = zagros.EmbeddingBags({name: DIM for name in names}, optimizer=zagros.Adagrad(lr=0.02), servers="local:2")
    layer_data = [(numbers, dict(zip(names, ids)), labels) for numbers, ids, labels in data]

    def network() -> None:
        for numbers, _, labels in data:
            step(nets[0], dense[0], numbers, fixed, labels)

    def with_zagros() -> None:
        for numbers, ids, labels in layer.ahead(layer_data, ids=lambda item: item[1]):
            step(nets[1], dense[1], numbers, torch.cat(list(layer(ids).values()), dim=1), labels)
        layer.flush()

    def with_torch() -> None:
        for numbers, ids, labels in data:
            vectors = torch.cat([bag(feature.unsqueeze(1)) for bag, feature in zip(bags, ids)], dim=1)
            step(nets[2], dense[2], numbers, vectors, labels)

    found: dict[str, list[float]] = {"network": [], "zagros": [], "torch": [], "native": []}
    with tempfile.TemporaryDirectory() as folder, layer:
        prepare(pathlib.Path(folder), data)
        for turn in range(rounds + 1):
            for name, work in (("network", network), ("zagros", with_zagros), ("torch", with_torch)):
                started = time.perf_counter()
                work()
                found[name].append(count * BATCH / (time.perf_counter() - started))
            found["native"].append(native(pathlib.Path(folder)))
            print(f"round {turn}: " + ", ".join(f"{name} {rates[-1]:,.0f}" for name, rates in found.items()), flush=True)
    # The first round makes the rows.
    found = {name: rates[1:] for name, rates in found.items()}
    print(f"\n{'':8} {'samples/s':>10} {'of native':>10} {'of torch':>10}   (medians of {rounds}; load {os.getloadavg()[0]:.1f}, {os.cpu_count()} CPUs)")
    for name, rates in found.items():
        ratios = [statistics.median(a / b for a, b in zip(rates, found[other])) for other in ("native", "torch")]
        print(f"{name:8} {statistics.median(rates):10,.0f} {ratios[0]:10.2f} {ratios[1]:10.2f}")


if __name__ == "__main__":
    main()
