"""A training program that tests start once or as several ranks.

Samples of step n are a function of n alone. Each rank takes its part of them, so one rank trains on the same global batches as
several. It prints a line for each step, and its servers before the first.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import torch

# DistributedDataParallel imports it, which takes seconds: once, before ranks are forked.
import torch._dynamo
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import zagros

ROWS, DIM, BATCH = 40, 4, 32
FEATURES = {"user": zagros.Bag(DIM), "tags": zagros.Bag(DIM, "mean")}
OPTIMIZERS: dict[str, Any] = {"adagrad": zagros.Adagrad(lr=0.05, epsilon=1e-10), "sgd": zagros.SGD(lr=0.1)}


def batch(step: int, rank: int, size: int) -> tuple[dict[str, Tensor], Tensor]:
    """The part of a rank. Ids below 8 are in the parts of all."""
    chance = torch.Generator().manual_seed(step)
    user = torch.randint(0, ROWS, (BATCH,), generator=chance)
    tags = torch.randint(0, 8, (BATCH, 3), generator=chance)
    labels = torch.randint(0, 2, (BATCH,), generator=chance).float()
    return {"user": user[rank::size], "tags": tags[rank::size]}, labels[rank::size]


def all_rows(layer: zagros.EmbeddingBags) -> dict[str, Tensor]:
    with torch.no_grad():
        return layer({"user": torch.arange(ROWS), "tags": torch.arange(ROWS)})


def joined(vectors: dict[str, Tensor]) -> Tensor:
    return torch.cat(list(vectors.values()), dim=1)


class Whole(nn.Module):
    """Layer and network as one module."""

    def __init__(self, layer: zagros.EmbeddingBags, network: nn.Module) -> None:
        super().__init__()
        self.layer, self.network = layer, network

    def forward(self, ids: dict[str, Tensor]) -> Tensor:
        return self.network(joined(self.layer(ids)))


def main(rank: int, size: int, folder: Path, options: dict[str, Any]) -> None:
    if size > 1:
        dist.init_process_group("gloo", init_method=f"file://{folder / 'ranks'}", rank=rank, world_size=size)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=10**6) if options.get("scaler") else None
    layer = zagros.EmbeddingBags(
        FEATURES,
        optimizer=OPTIMIZERS[options.get("optimizer", "adagrad")],
        init=zagros.Uniform(0.1),
        servers=options.get("servers", "local:2"),
        secret=options.get("secret"),
        staleness=options.get("staleness", 0),
        push_at=options.get("push_at", "backward"),
        scaler=scaler,
        timeout=options.get("timeout", 20.0),
        settings=options.get("settings"),
    )
    with layer:
        run(layer, scaler, rank, size, options)
        if size > 1:
            # As programs do, before the layer is closed.
            dist.destroy_process_group()


def run(layer: zagros.EmbeddingBags, scaler: Any, rank: int, size: int, options: dict[str, Any]) -> None:
    torch.manual_seed(7)
    plain = nn.Sequential(nn.Linear(2 * DIM, 8), nn.Tanh(), nn.Linear(8, 1))
    network = DistributedDataParallel(plain) if size > 1 else plain
    if options.get("inside"):
        network = DistributedDataParallel(Whole(layer, plain)) if size > 1 else Whole(layer, plain)
    if "load" in options:
        layer.load(options["load"], network)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    if layer._servers is not None:
        print("servers", json.dumps(layer._servers.pids()), flush=True)
    first, last = options.get("steps", [0, 20])
    parts = options.get("parts", 1)
    loader = ((step, *batch(step, rank, size)) for step in range(first, last))
    for step, ids, labels in layer.ahead(loader, ids=lambda item: item[1]) if options.get("ahead") else loader:
        if step == options.get("save_at"):
            layer.save(options["save"], network)
        print("step", step, flush=True)
        if step == options.get("fail_at") and rank == size - 1:
            raise ValueError("its data are wrong")
        optimizer.zero_grad()
        for part in range(parts):
            is_last = part == parts - 1
            with contextlib.nullcontext() if is_last or size == 1 else network.no_sync():
                some = {name: values[part::parts] for name, values in ids.items()} if parts > 1 else ids
                logits = network(some if options.get("inside") else joined(layer(some))).squeeze(1)
                loss = nn.functional.binary_cross_entropy_with_logits(logits, labels[part::parts]) / parts
                if step == options.get("overflow_at") and rank == size - 1:
                    loss = loss * float("inf")
                (scaler.scale(loss) if scaler else loss).backward()
        if scaler:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
        if layer._at_step:
            layer.step()
    layer.flush()
    if size > 1:
        dist.barrier()
    if rank == 0 and "dump" in options:
        counts = {"steps": layer.steps, "dropped": layer.dropped, "rows": layer.rows()}
        torch.save({"rows": all_rows(layer), "dense": plain.state_dict(), "counts": counts}, options["dump"])
    if size > 1:
        dist.barrier()


def start(rank: int, size: int, folder: Path, options: dict[str, Any]) -> None:
    """As a process of its own, whose output goes to files."""
    for number, name in ((1, "out"), (2, "err")):
        file = os.open(folder / f"{rank}.{name}", os.O_WRONLY | os.O_CREAT, 0o600)
        os.dup2(file, number)
        os.close(file)
    main(rank, size, folder, options)
