"""Saves: of any number of servers, whole, and what the program ``zagros`` reads."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import PROGRAM, read
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


def test_a_save_that_fails_leaves_the_one_before(layers: Layers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, dense = layers(), nn.Linear(2, 1)
    layer({"C1": torch.arange(9)})["C1"].sum().backward()
    layer.save(tmp_path, dense, extra={"epoch": 3, "optimizer": torch.optim.Adam(dense.parameters()).state_dict()})
    layer({"C1": torch.arange(9)})["C1"].sum().backward()
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(TypeError, match="dense is Adam; give the network"):
        layer.save(tmp_path, torch.optim.Adam(dense.parameters()))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="extra has more than tensors"):
        layer.save(tmp_path, dense, extra=layer)

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    for broken in ("os.replace", "zagros._saved.conclude"):
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(broken, interrupted)
            layer.save(tmp_path, dense)
        zagros.open(tmp_path).verify()
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    extra = layer.load(tmp_path, dense)
    assert extra["epoch"] == 3 and "param_groups" in extra["optimizer"] and layer.steps == 1
    assert read(layer, [1]).tolist() == [[-1.0, -1.0]]


def test_a_save_in_the_place_of_another_leaves_its_own_files_alone(layers: Layers, tmp_path: Path) -> None:
    layer, dense = layers(), nn.Linear(2, 1)
    for steps in (1, 2, 3):
        layer({"C1": torch.arange(9)})["C1"].sum().backward()
        layer.save(tmp_path, dense)
        model = zagros.open(tmp_path)
        model.verify()
        assert (model.steps, model.rows, model.table("C1").row(1).tolist()) == (steps, 9, [-steps, -steps])
        named = {file["name"] for file in json.loads((tmp_path / "manifest.json").read_text())["files"]}
        assert {path.name for path in tmp_path.iterdir()} == {*named, "manifest.json"}
    if PROGRAM.exists():
        subprocess.run([PROGRAM, "inspect", tmp_path, "--verify"], check=True, capture_output=True)


def test_tied_weights_are_saved_and_another_network_is_refused_before_rows_move(layers: Layers, tmp_path: Path) -> None:
    layer, tied = layers(), nn.ModuleDict({"one": nn.Linear(2, 2), "two": nn.Linear(2, 2)})
    tied["two"].weight = tied["one"].weight
    layer.save(tmp_path, tied)
    layer({"C1": torch.tensor([1])})["C1"].sum().backward()
    with pytest.raises(zagros.ZagrosError, match="weight 'bias' with the shape None, and dense with .2."):
        layer.load(tmp_path, nn.Linear(2, 2))
    assert read(layer, [1]).tolist() == [[-1.0, -1.0]]
    layer.load(tmp_path, tied)
    assert read(layer, [1]).tolist() == [[0.0, 0.0]]


def test_schedules_go_on_after_a_load(layers: Layers, tmp_path: Path) -> None:
    schedule = {"embedding.schedule": {"kind": "linear", "decay": 4, "floor": 0.0}}
    rows = []
    for saves in (False, True):
        layer = layers(settings=schedule)
        for step in range(4):
            if saves and step == 2:
                layer.save(tmp_path)
                layer = layers(settings=schedule)
                layer.load(tmp_path)
            layer({"C1": torch.tensor([1])})["C1"].sum().backward()
        rows.append(read(layer, [1]))
    assert torch.equal(*rows) and rows[0][0, 0] > -4.0


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
