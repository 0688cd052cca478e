"""Training with an embedding layer equals training with ``nn.EmbeddingBag``."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import zagros

ROWS, DIM, BATCH, STEPS = 40, 8, 32, 100
Layers = Callable[..., zagros.EmbeddingBags]


class Twin(nn.Module):
    """The same features in torch: ``one`` has one id a sample, ``tags`` any number, ``also`` shares the rows of ``tags``."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.EmbeddingBag(ROWS, DIM, mode="sum")
        self.tags = nn.EmbeddingBag(ROWS, DIM, mode="mean")

    def forward(self, ids: dict[str, Tensor | tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
        values, offsets = ids["tags"]
        also = nn.functional.embedding_bag(ids["also"], self.tags.weight, mode="sum")
        return {"one": self.one(ids["one"].unsqueeze(1)), "tags": self.tags(values, offsets), "also": also}


def batch() -> dict[str, Tensor | tuple[Tensor, Tensor]]:
    lengths = torch.randint(0, 5, (BATCH,))
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)[:-1]])
    tags = (torch.randint(0, ROWS, (int(lengths.sum()),)), offsets)
    return {"one": torch.randint(0, ROWS, (BATCH,)), "tags": tags, "also": torch.randint(0, ROWS, (BATCH, 3))}


FEATURES = {"one": DIM, "tags": zagros.Bag(DIM, "mean"), "also": zagros.Bag(DIM, "sum", table="tags")}


def network() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(3 * DIM, 16), nn.Tanh(), nn.Linear(16, 1))


def all_rows(layer: zagros.EmbeddingBags) -> dict[str, Tensor]:
    ids = torch.arange(ROWS)
    none = torch.zeros(ROWS, 0, dtype=torch.int64)
    with torch.no_grad():
        rows = layer({"one": ids, "tags": none, "also": ids})
    return {"one": rows["one"], "tags": rows["also"]}


@pytest.mark.parametrize(
    ("optimizer", "twin_of"),
    [
        (zagros.Adagrad(lr=0.05, epsilon=1e-10), lambda weights: torch.optim.Adagrad(weights, lr=0.05, eps=1e-10)),
        (zagros.SGD(lr=0.1), lambda weights: torch.optim.SGD(weights, lr=0.1)),
    ],
    ids=["adagrad", "sgd"],
)
def test_a_hundred_steps_leave_the_same_rows_and_losses(layers: Layers, optimizer: object, twin_of: Callable) -> None:
    layer = layers(FEATURES, optimizer=optimizer, init=zagros.Uniform(0.1), staleness=0)
    twin, ours, theirs = Twin(), network(), network()
    # An id without a row is read as its first value.
    first = all_rows(layer)
    assert layer.rows() == {"one": 0, "tags": 0} and first["one"].abs().max() > 0.05
    with torch.no_grad():
        twin.one.weight.copy_(first["one"])
        twin.tags.weight.copy_(first["tags"])
    dense, dense_twin = (torch.optim.Adam(net.parameters(), lr=0.01) for net in (ours, theirs))
    sparse_twin = twin_of(twin.parameters())
    torch.manual_seed(3)
    for _ in range(STEPS):
        ids, labels = batch(), torch.randint(0, 2, (BATCH, 1)).float()
        losses = []
        for vectors_of, net in ((layer, ours), (twin, theirs)):
            vectors = vectors_of(ids)
            logits = net(torch.cat([vectors[name] for name in FEATURES], dim=1))
            losses.append(nn.functional.binary_cross_entropy_with_logits(logits, labels))
        for optimiser in (dense, dense_twin, sparse_twin):
            optimiser.zero_grad()
        for loss in losses:
            loss.backward()
        for optimiser in (dense, dense_twin, sparse_twin):
            optimiser.step()
        assert abs(losses[0].item() - losses[1].item()) < 1e-6
    layer.flush()
    found = all_rows(layer)
    differences = {name: float((found[name] - getattr(twin, name).weight.detach()).abs().max()) for name in found}
    print(f"largest difference of a weight after {STEPS} steps: {differences}")
    assert max(differences.values()) < 1e-6
    assert float((found["one"] - first["one"]).abs().max()) > 1e-3, "rows have moved"


def test_gradients_of_accumulated_batches_are_one_update(layers: Layers) -> None:
    optimizer = zagros.Adagrad(lr=0.05, epsilon=1e-10)
    layer = layers(FEATURES, optimizer=optimizer, init=zagros.Uniform(0.1), push_at="step")
    twin, net = Twin(), network()
    first = all_rows(layer)
    with torch.no_grad():
        twin.one.weight.copy_(first["one"])
        twin.tags.weight.copy_(first["tags"])
    sparse = torch.optim.Adagrad(twin.parameters(), lr=0.05, eps=1e-10)
    assert layer.step() is False, "nothing to push"
    for _ in range(10):
        sparse.zero_grad()
        for _ in range(3):
            ids = batch()
            for vectors_of in (layer, twin):
                vectors = vectors_of(ids)
                net(torch.cat([vectors[name] for name in FEATURES], dim=1)).mean().div(3).backward()
        sparse.step()
        assert layer.step()
    layer.flush()
    found = all_rows(layer)
    assert all(torch.allclose(found[name], getattr(twin, name).weight, atol=1e-6, rtol=0) for name in found)
    assert layer.steps == 10


def test_the_number_of_servers_changes_nothing(layers: Layers) -> None:
    rows = []
    for servers in (1, 3):
        layer = layers({"C1": 4}, servers=f"local:{servers}", optimizer=zagros.Adam(lr=0.1), init=zagros.Normal(0.1))
        torch.manual_seed(5)
        for _ in range(20):
            layer({"C1": torch.randint(0, 50, (16,))})["C1"].pow(2).sum().backward()
        layer.flush()
        with torch.no_grad():
            rows.append(layer({"C1": torch.arange(50)})["C1"])
    assert torch.equal(*rows)
