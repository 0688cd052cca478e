"""Saved models as data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
import torch
from torch import nn

import zagros

Layers = Callable[..., zagros.EmbeddingBags]
ROWS = 3000


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray]:
    """A model of two servers, and the rows of its table `big` as they were looked up."""
    folder = tmp_path_factory.mktemp("model")
    features = {"big": 4, "none": 2, "text": 3}
    with zagros.EmbeddingBags(features, servers="local:2", init=zagros.Normal(1.0), optimizer=zagros.Adagrad(lr=0.1), staleness=0) as layer:
        empty = torch.zeros(ROWS, 0, dtype=torch.int64)
        big = torch.arange(ROWS) - 5
        # The same 64 bits as a signed number.
        text = torch.from_numpy(np.array([zagros.id_of("cat")], np.uint64).view(np.int64)).repeat(ROWS)
        ids = {"big": big, "none": empty, "text": text}
        vectors = layer(ids)
        (vectors["big"].sum() + vectors["text"].sum()).backward()
        layer.save(folder, nn.Linear(4, 2))
        layer.eval()
        return folder, layer(ids)["big"].numpy()


def test_a_table_is_its_rows_in_every_form(saved: tuple[Path, np.ndarray]) -> None:
    folder, rows = saved
    model = zagros.open(folder)
    model.verify()
    assert list(model.tables) == ["big", "none", "text"] and (model.rows, model.steps) == (ROWS + 1, 1)
    table = model.table("big")
    found = table.to_numpy()
    assert found.ids.dtype == np.uint64 and sorted(found.ids.astype(np.int64)) == list(range(-5, ROWS - 5))
    order = np.argsort(found.ids.astype(np.int64))
    assert np.array_equal(found.weights[order], rows)
    assert sum(len(block.ids) for block in table.batches()) == ROWS and len(list(table.batches())) > 1
    arrow = table.to_arrow(state=True)
    assert isinstance(arrow, pyarrow.Table) and arrow.column_names == ["id", "weights", "sum_of_squares"]
    assert np.array_equal(np.array(arrow["weights"].to_pylist(), np.float32), found.weights)
    frame = table.to_pandas(state=True)
    assert frame.shape == (ROWS, 8) and np.array_equal(frame.iloc[:, :4].to_numpy(), found.weights)
    assert np.array_equal(frame.loc[np.uint64(7)].to_numpy()[:4], table.row(7))
    assert [*model.table("none").to_numpy().weights.shape] == [0, 2]


def test_one_row_by_id_and_by_text(saved: tuple[Path, np.ndarray]) -> None:
    folder, rows = saved
    model = zagros.open(folder)
    table = model.table("big")
    assert np.array_equal(table.row(0), rows[5])
    state = table.row(0, state=True)
    assert isinstance(state, dict) and state["sum_of_squares"].tolist() == [1.0] * 4
    assert model.table("text").row("cat").shape == (3,)
    for table_name, id in (("big", ROWS), ("text", "dog")):
        with pytest.raises(KeyError, match="has no row"):
            model.table(table_name).row(id)
    with pytest.raises(KeyError, match="there are big, none, text"):
        model.table("bik")


@pytest.mark.parametrize("metric", ["cosine", "dot", "euclidean"])
def test_the_nearest_rows_are_those_of_a_full_sort(saved: tuple[Path, np.ndarray], metric: Any) -> None:
    table = zagros.open(saved[0]).table("big")
    found = table.to_numpy()
    vector = table.row(100)
    measures = {
        "dot": found.weights @ vector,
        "cosine": found.weights @ vector / np.linalg.norm(found.weights, axis=1) / np.linalg.norm(vector),
        "euclidean": np.linalg.norm(found.weights - vector, axis=1),
    }[metric]
    order = np.argsort(measures if metric == "euclidean" else -measures)[:7]
    ids, nearest = table.nearest(100, k=7, metric=metric)
    assert ids.tolist() == found.ids[order].tolist() and np.allclose(nearest, measures[order], atol=1e-5)
    assert metric == "dot" or ids[0] == 100
    with pytest.raises(ValueError, match=r"rows of 'big' have \[4\]"):
        table.nearest(np.zeros(3, np.float32))


def test_ids_may_be_numbers_of_numpy_and_signed(saved: tuple[Path, np.ndarray]) -> None:
    table = zagros.open(saved[0]).table("big")
    ids, _ = table.nearest(100, k=2)
    assert table.nearest(ids[0], k=2)[0].tolist() == ids.tolist() and np.array_equal(table.row(-5), saved[1][0])
    with pytest.raises(ValueError, match="k is -1"):
        table.nearest(100, k=-1)
    with pytest.raises(ValueError, match="not finite"):
        table.nearest(np.full(4, np.nan, np.float32))


def test_the_names_of_the_package_are_listed_and_hide_none_of_the_language() -> None:
    assert {"EmbeddingBags", "open", "train"} < set(dir(zagros)) and not {"TYPE_CHECKING", "importlib"} & set(dir(zagros))
    assert "open" not in zagros.__all__ and all(hasattr(zagros, name) for name in dir(zagros))


def test_what_is_no_file_is_refused_by_name() -> None:
    frame = pyarrow.table({"user": ["a"]}).to_pandas()
    with pytest.raises(TypeError, match="data is DataFrame; it is a file or a list of files"):
        zagros.predict("model", frame)
    with pytest.raises(TypeError, match="keys is 'user'; it is a list of columns"):
        zagros.predict("model", "rows.csv", keys="user")


def test_dense_weights_are_arrays_and_a_damaged_file_is_found(saved: tuple[Path, np.ndarray]) -> None:
    model = zagros.open(saved[0])
    assert {name: array.shape for name, array in model.dense().items()} == {"weight": (2, 4), "bias": (2,)}
    assert model.evaluation is None and "'big'" in model.job.replace('"', "'")
    dense = saved[0] / "dense.safetensors"
    content = dense.read_bytes()
    dense.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    try:
        for broken in (model.dense, model.verify):
            with pytest.raises(zagros.ZagrosError, match="is not the file that was saved"):
                broken()
    finally:
        dense.write_bytes(content)
    with pytest.raises(zagros.ZagrosError, match="holds no model"):
        zagros.open(saved[0] / "none")
