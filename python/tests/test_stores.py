"""Saves in an object store: rows, dense weights and manifest are one save there, too."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator

import pytest
import torch
from conftest import PROGRAM, read
from torch import nn

import zagros

Layers = Callable[..., zagros.EmbeddingBags]
FAKE = PROGRAM.with_name("zagros-fake-s3")
pytestmark = pytest.mark.skipif(not FAKE.exists() and os.environ.get("CI") != "true", reason=f"{FAKE} is not built (make programs)")


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A store in memory with one bucket, which the environment names."""
    with subprocess.Popen([FAKE, "models"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as store:
        assert store.stdout is not None and store.stdin is not None
        for line in iter(store.stdout.readline, "\n"):
            name, value = line.strip().split("=", 1)
            monkeypatch.setenv(name, value)
        yield "s3://models"
        store.stdin.close()


def test_a_save_in_a_store_is_loaded_by_any_number_of_servers(layers: Layers, bucket: str) -> None:
    layer, network = layers(stores=[bucket]), nn.Linear(2, 1)
    layer({"C1": torch.tensor([1, 2, 2])})["C1"].sum().backward()
    layer.save(f"{bucket}/a/", network)
    rows, weight = read(layer, [1, 2, 3]), network.weight.detach().clone()
    layer({"C1": torch.tensor([1, 3])})["C1"].sum().backward()
    other = layers(servers="local:3", stores=[f"{bucket}/a"])
    fresh = nn.Linear(2, 1)
    other.load(f"{bucket}/a", fresh)
    assert torch.equal(read(other, [1, 2, 3]), rows) and torch.equal(fresh.weight, weight)
    assert (other.steps, other.samples) == (1, 3)
    # A second save in its place is a whole one.
    layer.save(f"{bucket}/a", network)
    other.load(f"{bucket}/a", fresh)
    assert torch.equal(read(other, [1, 2, 3]), read(layer, [1, 2, 3])) and other.steps == 2


def test_what_is_not_there_or_not_allowed_is_said(layers: Layers, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = layers(stores=[f"{bucket}/mine"])
    with pytest.raises(zagros.ZagrosError, match="s3://models/none holds no model"):
        layer.load(f"{bucket}/none")
    with pytest.raises(zagros.ZagrosError, match="could not save its rows.*outside of the allowed folders.*stores"):
        layer.save(f"{bucket}/other")
    with pytest.raises(zagros.ZagrosError, match="only s3:// and file://"):
        layer.save("gs://models/a")
    with pytest.raises(zagros.ZagrosError, match="reads folders on a disk"):
        zagros.open(f"{bucket}/a")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "other")
    with pytest.raises(zagros.ZagrosError, match="AWS_ACCESS_KEY_ID"):
        layer.load(f"{bucket}/mine")
