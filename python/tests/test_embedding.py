"""What an embedding layer does in a loop, and what it refuses."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import is_idle, read
from torch import nn

import zagros
from zagros import _connect
from zagros._job import job_of

Layers = Callable[..., zagros.EmbeddingBags]


def train(layer: zagros.EmbeddingBags, ids: list[int]) -> None:
    layer({"C1": torch.tensor(ids)})["C1"].sum().backward()


def test_each_id_gets_its_gradient_once(layers: Layers) -> None:
    layer = layers(staleness=4)
    for _ in range(5):
        train(layer, [1, 1, 2])
    assert read(layer, [1, 2, 3]).tolist() == [[-10.0, -10.0], [-5.0, -5.0], [0.0, 0.0]]
    assert layer.rows() == {"C1": 2} and (layer.steps, layer.samples) == (5, 15)
    assert not list(layer.parameters()) and layer.state_dict() == {}


def test_reading_makes_no_rows_and_holds_no_place(layers: Layers) -> None:
    layer = layers()
    vectors = layer.eval()({"C1": torch.tensor([5, 6])})["C1"]
    with torch.no_grad():
        layer.train()({"C1": torch.tensor([7])})
    assert not vectors.requires_grad and layer.rows() == {"C1": 0}
    train(layer, [5])
    assert layer.rows() == {"C1": 1}


def test_a_second_backward_pushes_nothing(layers: Layers) -> None:
    layer = layers()
    loss = layer({"C1": torch.tensor([1])})["C1"].sum()
    loss.backward(retain_graph=True)
    with pytest.raises(zagros.ZagrosError, match="a push is never repeated"):
        loss.backward()
    assert read(layer, [1]).tolist() == [[-1.0, -1.0]]


def test_a_full_window_is_an_error_and_released_batches_make_room(layers: Layers) -> None:
    layer = layers()
    kept = layer({"C1": torch.tensor([1])})
    with pytest.raises(zagros.ZagrosError, match="staleness window is full: 1 batches"):
        layer({"C1": torch.tensor([2])})
    layer.release()
    train(layer, [2])
    with pytest.raises(zagros.ZagrosError, match="pushed or released before"):
        kept["C1"].sum().backward()
    # A batch that the program holds no more gives its place back by itself.
    layer({"C1": torch.tensor([3])})
    train(layer, [3])
    assert read(layer, [1, 2, 3])[:, 0].tolist() == [0.0, -1.0, -1.0]


def test_an_exception_in_the_loop_leaves_a_layer_that_goes_on(layers: Layers) -> None:
    layer = layers()
    for attempt in range(3):
        try:
            vectors = layer({"C1": torch.tensor([1])})["C1"]
            raise RuntimeError(f"{attempt}: {vectors.shape}")
        except RuntimeError:
            del vectors
    train(layer, [1])
    assert read(layer, [1])[0, 0] == -1.0


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_lookups_ahead_change_no_result(layers: Layers, staleness: int) -> None:
    layer = layers(staleness=staleness)
    loader = torch.utils.data.DataLoader(torch.arange(40) % 10, batch_size=4)
    seen = 0
    for item in layer.ahead(loader, ids=lambda item: {"C1": item[:2]}):
        layer({"C1": item[:2]})["C1"].sum().backward()
        seen += 1
    for item in layer.ahead(loader, ids=lambda item: {"C1": item}):
        if seen == 15:
            break
        layer({"C1": item})["C1"].sum().backward()
        seen += 1
    layer.flush()
    assert is_idle(layer) and layer.steps == 15
    assert read(layer, list(range(10)))[:, 0].sum() == -(10 * 2 + 5 * 4)


@pytest.mark.parametrize("staleness", [0, 2])
def test_other_ids_than_those_ahead_are_trained_on_and_said(layers: Layers, staleness: int) -> None:
    layer = layers(staleness=staleness)
    loader = torch.utils.data.DataLoader(torch.arange(40), batch_size=4)
    with pytest.warns(UserWarning, match="no more lookups are sent early"):
        for item in layer.ahead(loader, ids=lambda item: {"C1": item}):
            train(layer, (item + 100).tolist())
    layer.flush()
    assert is_idle(layer) and layer.steps == 10
    assert read(layer, list(range(100, 140)))[:, 0].tolist() == [-1.0] * 40


def test_ids_that_change_in_place_after_an_early_lookup_are_looked_up_again(layers: Layers) -> None:
    layer = layers(staleness=2)
    with pytest.warns(UserWarning, match="no more lookups are sent early") as said:
        for item in layer.ahead([torch.tensor([1]), torch.tensor([2])], ids=lambda item: {"C1": item}):
            item.fill_(7)
            layer({"C1": item})["C1"].sum().backward()
    assert read(layer, [1, 2, 7])[:, 0].tolist() == [0.0, 0.0, -2.0]
    assert said[0].filename == __file__, "the warning names the caller's line"


def test_a_table_without_ids_in_a_batch_trains(layers: Layers) -> None:
    layer = layers({"user": 8, "tags": 8})
    none = torch.zeros(2, 0, dtype=torch.int64)
    for ids in ({"user": torch.tensor([1, 2]), "tags": none}, {"user": none, "tags": torch.tensor([1, 2])}, {"user": none, "tags": none}):
        sum(vectors.sum() for vectors in layer(ids).values()).backward()
    layer.flush()
    assert layer.rows() == {"user": 2, "tags": 2} and layer.steps == 3


@pytest.mark.parametrize("push_at", ["backward", "step"])
def test_rows_of_a_table_that_is_not_in_the_loss_stay(layers: Layers, push_at: str) -> None:
    layer = layers({"user": 1, "item": 1}, optimizer=zagros.Adam(lr=0.1), push_at=push_at)
    both = {"user": torch.tensor([1]), "item": torch.tensor([2])}
    rows = []
    for names in (["user", "item"], ["user"], ["user"]):
        vectors = layer(both)
        sum(vectors[name].sum() for name in names).backward()
        if push_at == "step":
            layer.step()
        layer.flush()
        with torch.no_grad():
            rows.append({name: vector.item() for name, vector in layer(both).items()})
    assert rows[0]["item"] == rows[1]["item"] == rows[2]["item"] != 0.0
    assert rows[0]["user"] > rows[1]["user"] > rows[2]["user"]


def test_gradients_that_wait_for_a_step_are_not_dropped_in_silence(layers: Layers) -> None:
    layer = layers(push_at="step")
    train(layer, [1])
    with pytest.warns(UserWarning, match="gradients of 1 backward passes are lost: step"):
        layer.close()


def test_gradients_that_are_not_finite_are_left_out_and_counted(layers: Layers) -> None:
    layer = layers(settings={"embedding.non_finite": "skip"})
    (layer({"C1": torch.tensor([1, 2])})["C1"] * torch.tensor([[float("nan")], [1.0]])).sum().backward()
    assert read(layer, [1, 2])[:, 0].tolist() == [0.0, -1.0] and layer.skipped == 1


def test_after_a_gradient_that_is_refused_the_layer_loads_and_goes_on(layers: Layers, tmp_path: Path) -> None:
    layer = layers()
    train(layer, [1])
    layer.save(tmp_path)
    (layer({"C1": torch.tensor([1])})["C1"] * float("nan")).sum().backward()
    with pytest.raises(zagros.ZagrosError, match="was refused.*NaN.*embedding.non_finite"):
        layer.flush()
    with pytest.raises(zagros.ZagrosError, match="was refused"):
        train(layer, [1])
    layer.load(tmp_path)
    train(layer, [1])
    assert read(layer, [1]).tolist() == [[-2.0, -2.0]] and layer.steps == 2


def test_an_overflowed_step_is_dropped_and_others_are_unscaled(layers: Layers) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=10**6)
    layer = layers(scaler=scaler)
    dense = nn.Linear(2, 1, bias=False)
    nn.init.ones_(dense.weight)
    optimizer = torch.optim.SGD(dense.parameters(), lr=0.0)
    pushed = []
    for factor in (1.0, float("inf"), 2.0):
        optimizer.zero_grad()
        # The rows' own gradients are finite in each step: the dense network overflows.
        loss = dense(layer({"C1": torch.tensor([1])})["C1"]).sum() + (dense.weight * factor).sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        pushed.append(layer.step())
    assert pushed == [True, False, True] and layer.dropped == 1
    assert read(layer, [1]).tolist() == [[-2.0, -2.0]]


def test_the_dense_part_compiles(layers: Layers) -> None:
    layer = layers()
    dense = torch.compile(nn.Linear(2, 1), backend="eager")
    dense(layer({"C1": torch.tensor([1, 2])})["C1"]).sum().backward()
    assert layer.rows() == {"C1": 2}


def test_bags_of_every_form(layers: Layers) -> None:
    layer = layers({"sum": zagros.Bag(1), "mean": zagros.Bag(1, "mean"), "sqrtn": zagros.Bag(1, "sqrtn")}, init=zagros.Constant(2.0))
    ids = torch.tensor([[1, 2, 3, 4]], dtype=torch.int32)
    ragged = (torch.tensor([1, 2, 3, 4]), torch.tensor([0, 0, 4]))
    for grad in (False, True):
        with torch.set_grad_enabled(grad):
            square = {name: vector.tolist() for name, vector in layer({name: ids for name in ("sum", "mean", "sqrtn")}).items()}
            layer.release()
            assert square == {"sum": [[8.0]], "mean": [[2.0]], "sqrtn": [[4.0]]}
            uneven = {name: vector.flatten().tolist() for name, vector in layer({name: ragged for name in ("sum", "mean", "sqrtn")}).items()}
            layer.release()
            assert uneven == {"sum": [0.0, 8.0, 0.0], "mean": [0.0, 2.0, 0.0], "sqrtn": [0.0, 4.0, 0.0]}
            empty = layer({name: torch.zeros(2, 0, dtype=torch.int64) for name in ("sum", "mean", "sqrtn")})
            assert empty["sum"].tolist() == [[0.0], [0.0]] and empty["sum"].requires_grad == grad
            layer.release()


WRONG_IDS: list[tuple[Any, type[Exception], str]] = [
    ({"C11": torch.tensor([1])}, ValueError, "no feature 'C11'; did you mean 'C1'"),
    ({}, ValueError, "no ids of the feature 'C1'"),
    (torch.tensor([1]), TypeError, "give a dict"),
    ({"C1": torch.tensor([1.0])}, TypeError, "torch.float32; give a tensor of torch.int64"),
    ({"C1": [1, 2]}, TypeError, "'C1' are list"),
    ({"C1": torch.zeros(1, 1, 1, dtype=torch.int64)}, ValueError, r"shape \[1, 1, 1\]"),
    ({"C1": (torch.tensor([1, 2]), torch.tensor([1]))}, ValueError, "do not divide its 2 ids"),
    ({"C1": (torch.tensor([1, 2]), torch.tensor([0, 2, 1]))}, ValueError, "do not divide its 2 ids"),
    ({"C1": (torch.tensor([1, 2]), torch.tensor([0, 3]))}, ValueError, "do not divide its 2 ids"),
]


@pytest.fixture(scope="module")
def one_layer() -> Any:
    with zagros.EmbeddingBags({"C1": 2}) as layer:
        yield layer


@pytest.mark.parametrize(("ids", "kind", "said"), WRONG_IDS)
def test_wrong_ids_are_refused_by_name(one_layer: zagros.EmbeddingBags, ids: Any, kind: type[Exception], said: str) -> None:
    with pytest.raises(kind, match=said):
        one_layer(ids)
    with pytest.raises(TypeError, match="use save"):
        copy.deepcopy(one_layer)


WRONG_SETTINGS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"servers": "local:0"}, ValueError, "local:1"),
    ({"servers": "a:1,b:2"}, ValueError, "the coordinator's host:port alone"),
    ({"servers": "here"}, ValueError, "local:N"),
    ({"servers": 2}, TypeError, 'such as "local:2"'),
    ({"stores": "s3://a"}, TypeError, "it is a list, such as"),
    ({"features": ["C1"]}, TypeError, "features are list; give a dict"),
    ({"features": {1: 2}}, TypeError, "the name of a feature is 1"),
    ({"optimizer": zagros.SGD(lr=float("nan"))}, ValueError, "SGD.lr is nan; it is finite"),
    ({"settings": {"cluster.memory": object()}}, TypeError, "a setting is <object"),
    ({"features": {}}, ValueError, "no features"),
    ({"features": {"a": 0}}, ValueError, "dim is 0"),
    ({"features": {"a": 2, "b": zagros.Bag(3, table="a")}}, ValueError, "share the table 'a'"),
    ({"push_at": "epoch"}, ValueError, "push_at"),
    ({"optimizer": 3}, TypeError, "zagros.Adagrad"),
    ({"optimizer": zagros.SGD(lr=-1.0)}, ValueError, "`embedding.optimizer.lr` is out of range"),
    ({"staleness": -1}, ValueError, "staleness"),
    ({"settings": {"cluster.memori": "1GiB"}}, ValueError, "did you mean `memory`"),
]


@pytest.mark.parametrize(("wrong", "kind", "said"), WRONG_SETTINGS)
def test_wrong_settings_are_refused_before_a_process_starts(wrong: dict[str, Any], kind: type[Exception], said: str) -> None:
    settings: dict[str, Any] = {"features": {"C1": 2}, **wrong}
    with pytest.raises(kind, match=said):
        zagros.EmbeddingBags(settings.pop("features"), **settings)


def test_settings_may_be_numbers_of_numpy_and_paths(tmp_path: Path) -> None:
    bags = {"C1": zagros.Bag(2)}
    more = {"embedding.clip_norm": np.float32(0.5), "cluster.log_folder": tmp_path}
    given = {"optimizer": zagros.SGD(lr=np.float64(0.5)), "init": zagros.Zero(), "servers": 1, "workers": 1, "staleness": 0, "seed": 1}
    text, _ = job_of(bags, **given, timeout=5.0, settings=more)
    assert "clip_norm = 0.5" in text and str(tmp_path) in text and "lr = 0.5" in text


def test_a_secret_that_every_user_can_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "secret"
    file.write_text("0" * 64)
    monkeypatch.delenv("ZAGROS_RUN_SECRET", raising=False)
    monkeypatch.setenv("ZAGROS_RUN_SECRET_FILE", str(file))
    file.chmod(0o604)
    with pytest.raises(zagros.ZagrosError, match="next: chmod o-rwx"):
        _connect._secret()
    file.chmod(0o640)
    assert _connect._secret() == "0" * 64
    file.write_text("0" * 5000)
    with pytest.raises(zagros.ZagrosError, match="has 5000 bytes"):
        _connect._secret()


def test_a_bag_knows_its_poolings() -> None:
    with pytest.raises(ValueError, match="pooling is 'max'"):
        zagros.Bag(2, "max")  # type: ignore[arg-type]
