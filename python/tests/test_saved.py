"""Saves: of any number of servers, whole, and what the program ``zagros`` reads."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import read
from torch import nn

import zagros

Layers = Callable[..., zagros.EmbeddingBags]


def test_a_save_is_loaded_by_another_number_of_servers_and_training_goes_on_equally(layers: Layers, tmp_path: Path) -> None:
    optimizer = zagros.Adagrad(lr=0.1)

    def train(layer: zagros.EmbeddingBags, dense: nn.Module, steps: int) -> None:
        for _ in range(steps):
            dense(layer({"C1": torch.randint(0, 30, (16,))})["C1"]).pow(2).mean().backward()

    layer, dense = layers(optimizer=optimizer, init=zagros.Normal(0.1)), nn.Linear(2, 1)
    train(layer, dense, 5)
    layer.save(tmp_path / "save", dense)
    torch.manual_seed(2)
    train(layer, dense, 5)
    other, twin = layers(optimizer=optimizer, init=zagros.Normal(0.1), servers="local:3"), nn.Linear(2, 1)
    other.load(tmp_path / "save", twin)
    assert (other.steps, other.samples) == (5, 80)
    torch.manual_seed(2)
    train(other, twin, 5)
    assert torch.equal(read(layer, list(range(30))), read(other, list(range(30))))
    manifest = json.loads((tmp_path / "save" / "manifest.json").read_text())
    assert manifest["rows"] <= 30 and len(manifest["row_files"]) == 2
    assert sorted(path.name for path in (tmp_path / "save").iterdir()) == sorted(
        [*(file["name"] for file in manifest["files"]), "manifest.json"]
    )


def test_a_damaged_save_is_refused(layers: Layers, tmp_path: Path) -> None:
    layer = layers()
    layer({"C1": torch.arange(9)})["C1"].sum().backward()
    layer.save(tmp_path)
    rows = next(tmp_path.glob("*.zrows"))
    content = bytearray(rows.read_bytes())
    content[len(content) // 2] ^= 1
    rows.write_bytes(content)
    with pytest.raises(zagros.ZagrosError, match="could not load rows"):
        layer.load(tmp_path)
    manifest = tmp_path / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"steps": 1', '"steps": 2'))
    with pytest.raises(zagros.ZagrosError, match="is damaged"):
        layer.load(tmp_path)
    with pytest.raises(zagros.ZagrosError, match="holds no model"):
        layer.load(tmp_path / "none")
    manifest.unlink()
    layer.save(tmp_path)
    layer.load(tmp_path)
    assert read(layer, [1]).tolist() == [[-1.0, -1.0]]
