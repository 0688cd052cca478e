"""Rows from elsewhere as models, and out again."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import safetensors.torch
import torch
from conftest import PROGRAM, needs_program
from torch import nn

import zagros

Layers = Callable[..., zagros.EmbeddingBags]
ROWS, DIM = 3000, 4


@pytest.fixture
def bag() -> nn.EmbeddingBag:
    return nn.EmbeddingBag(ROWS, DIM, mode="sum")


def sorted_rows(table: zagros.SavedTable, state: bool = False) -> zagros.RowBlock:
    found = table.to_numpy(state)
    order = np.argsort(found.ids)
    return zagros.RowBlock(found.ids[order], {name: values[order] for name, values in found.parts.items()})


def test_the_tables_of_a_module_are_those_of_a_layer(bag: nn.EmbeddingBag, layers: Layers, tmp_path: Path) -> None:
    net = nn.Linear(DIM, 1)
    model = zagros.import_rows(tmp_path / "model", {"C1": bag, "C2": bag.weight[:10]}, dense=net)
    model.verify()
    assert (model.rows, model.steps, model.folder) == (ROWS + 10, 0, tmp_path / "model")
    layer, twin = layers({"C1": DIM, "C2": DIM}, optimizer=zagros.Adagrad(), staleness=0), nn.Linear(DIM, 1)
    layer.load(tmp_path / "model", twin)
    assert torch.equal(net.weight, twin.weight)
    ids = torch.randint(0, ROWS, (64, 3))
    vectors = layer({"C1": ids, "C2": torch.zeros(64, 0, dtype=torch.int64)})["C1"]
    expected = bag(ids)
    assert torch.equal(vectors, expected)
    # The state is that of new rows: they learn as those of PyTorch do.
    optimizer = torch.optim.Adagrad(bag.parameters(), lr=0.02, eps=1e-8)
    vectors.pow(2).sum().backward()
    expected.pow(2).sum().backward()
    optimizer.step()
    assert torch.allclose(read_all(layer, ids), bag.weight[ids.unique()], atol=1e-6)


def read_all(layer: zagros.EmbeddingBags, ids: torch.Tensor) -> torch.Tensor:
    layer.flush()
    layer.eval()
    return layer({"C1": ids.unique(), "C2": ids.unique()})["C1"]


@pytest.mark.parametrize("ending", ["parquet", "safetensors"])
@pytest.mark.parametrize("element", ["f32", "bf16"])
@pytest.mark.parametrize("optimizer", [zagros.Adagrad(), zagros.RowAdagrad(), zagros.Adam(), zagros.SGD()], ids=lambda one: type(one).__name__)
def test_a_round_trip_keeps_every_bit(layers: Layers, tmp_path: Path, ending: str, element: str, optimizer: Any) -> None:
    layer = layers({"C1": 5}, optimizer=optimizer, init=zagros.Normal(1.0), settings={"embedding.element": element})
    layer({"C1": torch.arange(ROWS) - 7})["C1"].sum().backward()
    layer.save(tmp_path / "saved")
    table = zagros.open(tmp_path / "saved").table("C1")
    file = tmp_path / f"rows.{ending}"
    write = table.to_parquet if ending == "parquet" else table.to_safetensors
    assert write(file, state=True) == ROWS
    with pytest.raises(FileExistsError, match="overwrite=True"):
        write(file)
    again = zagros.import_rows(tmp_path / "again", {"C1": file}, job=layer)
    for parts in ({name: values for name, values in sorted_rows(one, state=True).parts.items()} for one in [again.table("C1")]):
        expected = sorted_rows(table, state=True)
        assert parts.keys() == expected.parts.keys()
        for name, values in parts.items():
            assert np.array_equal(values.view(np.uint32), expected.parts[name].view(np.uint32)), name
    assert again.table("C1").element == element
    # Without the state, rows have that of new ones.
    assert write(file, overwrite=True) == ROWS
    plain = zagros.import_rows(tmp_path / "again", {"C1": file}, job=layer, overwrite=True)
    assert np.array_equal(sorted_rows(plain.table("C1")).weights, sorted_rows(table).weights)


def test_a_table_larger_than_a_block_and_a_saved_table_come_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zagros.imports._BLOCK", 1 << 10)
    weights = np.random.default_rng(1).standard_normal((ROWS, DIM)).astype(np.float32)

    def blocks() -> Iterator[zagros.RowBlock]:
        for first in range(0, ROWS, 700):
            ids = np.arange(first, min(ROWS, first + 700), dtype=np.uint64) << np.uint64(40)
            yield zagros.RowBlock(ids, {"weights": weights[first : first + 700]})

    model = zagros.import_rows(tmp_path / "a", {"big": blocks()}, optimizer=zagros.SGD())
    assert np.array_equal(sorted_rows(model.table("big")).weights, weights)
    twin = zagros.import_rows(tmp_path / "b", {"other": model.table("big")}, optimizer=zagros.Adagrad(initial_accumulator=0.5))
    found = sorted_rows(twin.table("other"), state=True)
    assert np.array_equal(found.weights, weights) and (found.parts["sum_of_squares"] == 0.5).all()


def test_ids_are_numbers_of_64_bits_or_texts(tmp_path: Path) -> None:
    rows = torch.arange(6.0).reshape(2, 3).half()
    model = zagros.import_rows(
        tmp_path / "model",
        {"signed": (torch.tensor([-1, 5]), rows), "texts": (["cat", "dog"], rows), "unsigned": (np.array([2**64 - 2, 0], np.uint64), rows)},
    )
    assert model.table("signed").row(2**64 - 1).tolist() == [0, 1, 2]  # type: ignore[union-attr]
    assert model.table("texts").row("dog").tolist() == [3, 4, 5]  # type: ignore[union-attr]
    assert model.table("unsigned").row(2**64 - 2).tolist() == [0, 1, 2]  # type: ignore[union-attr]
    columns = {"id": ["cat", "dog"], "vector": pyarrow.array([[1.0, 2.0], [3.0, 4.0]], pyarrow.list_(pyarrow.float32())), "score": [0.5, 0.5]}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "rows.parquet")
    file = zagros.import_rows(tmp_path / "file", {"animal": tmp_path / "rows.parquet"})
    assert file.table("animal").row("cat").tolist() == [1, 2]  # type: ignore[union-attr]
    safetensors.torch.save_file({"weight": torch.eye(3).bfloat16()}, tmp_path / "rows.safetensors")
    eye = zagros.import_rows(tmp_path / "eye", {"C1": tmp_path / "rows.safetensors"})
    assert np.array_equal(sorted_rows(eye.table("C1")).weights, np.eye(3, dtype=np.float32))


def test_the_tables_of_a_torchrec_state_dict(tmp_path: Path) -> None:
    state = {
        "module.ebc.embedding_bags.user.weight": torch.ones(4, 2),
        "module.ebc.embedding_bags.item.weight": torch.zeros(3, 2),
        "module.over.0.weight": torch.ones(1, 4),
    }
    tables = zagros.torchrec_tables(state)
    assert sorted(tables) == ["item", "user"] and tables["user"] is state["module.ebc.embedding_bags.user.weight"]
    assert zagros.import_rows(tmp_path / "model", tables).rows == 7
    with pytest.raises(ValueError, match=r"the first ones are module.over.0.weight"):
        zagros.torchrec_tables({"module.over.0.weight": torch.ones(1)})
    with pytest.raises(ValueError, match="two collections have a table 'user'"):
        zagros.torchrec_tables({**state, "module.ec.embeddings.user.weight": torch.ones(4, 2)})


def test_a_sharded_table_is_taken_if_it_is_whole() -> None:
    from torch.distributed._shard.sharded_tensor import Shard, init_from_local_shards

    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        own = [Shard.from_tensor_and_offsets(torch.ones(2, 3), [0, 0], 0)]
        state = {"embedding_bags.t.weight": init_from_local_shards(own, 2, 3)}
        assert torch.equal(zagros.torchrec_tables(state)["t"], torch.ones(2, 3))
        halves = [Shard.from_tensor_and_offsets(torch.ones(1, 3), [row, 0], 0) for row in range(2)]
        with pytest.raises(zagros.ZagrosError, match="has 2 shards of it; gather it first"):
            zagros.torchrec_tables({"embedding_bags.t.weight": init_from_local_shards(halves, 2, 3)})
    finally:
        torch.distributed.destroy_process_group()


WRONG: dict[str, tuple[Any, type[Exception], str]] = {
    "type": (torch.ones(2, 2, dtype=torch.float64), TypeError, "are float64; give float32"),
    "shape": (torch.ones(4), ValueError, r"have the shape \[4\]; it is \[rows, dim\]"),
    "twice": ((torch.tensor([3, 3]), torch.ones(2, 2)), ValueError, "the id 3 .* occurs twice in the rows of table `C1`"),
    "lengths": ((torch.tensor([3]), torch.ones(2, 2)), ValueError, "has 1 ids and 2 rows"),
    "float ids": ((torch.tensor([3.0]), torch.ones(1, 2)), TypeError, "floats do not hold all 64 bits"),
    "not finite": (torch.tensor([[1.0, 2.0], [float("nan"), 1.0]]), ValueError, "not finite, in row 1"),
    "none": (iter(()), ValueError, "leave the table out"),
    "list": ([1.0], TypeError, "are list; give a tensor"),
    "no file": ("nowhere.parquet", zagros.ZagrosError, "is no file"),
    "blocks": (iter([torch.ones(2)]), TypeError, "are no blocks"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_rows_are_refused_and_leave_nothing(tmp_path: Path, wrong: str) -> None:
    source, kind, message = WRONG[wrong]
    with pytest.raises(kind, match=message):
        zagros.import_rows(tmp_path / "model", {"C1": source})
    assert not list(tmp_path.glob("model/*"))


def test_what_does_not_fit_its_table_is_refused(layers: Layers, tmp_path: Path) -> None:
    layer = layers({"user": 2}, optimizer=zagros.Adam())
    with pytest.raises(ValueError, match="no table 'users'; did you mean 'user'"):
        zagros.import_rows(tmp_path / "model", {"users": torch.ones(3, 2)}, job=layer)
    with pytest.raises(ValueError, match=r"weights of 'user' have the shape \[3, 5\]; 3 ids of this table need \[3, 2\]"):
        zagros.import_rows(tmp_path / "model", {"user": torch.ones(3, 5)}, job=layer)
    block = zagros.RowBlock(np.arange(1, dtype=np.uint64), {name: np.ones((1, 2), np.float32) for name in ("weights", "first_moment")})
    with pytest.raises(ValueError, match="have weights, first_moment, but no second_moment, beta_powers"):
        zagros.import_rows(tmp_path / "model", {"user": block}, job=layer)
    with pytest.raises(ValueError, match="give either job= or optimizer="):
        zagros.import_rows(tmp_path / "model", {"user": torch.ones(3, 2)}, job=layer, optimizer=zagros.SGD())
    zagros.import_rows(tmp_path / "model", {"user": torch.ones(3, 2)}, job=layer)
    with pytest.raises(zagros.ZagrosError, match="overwrite=True"):
        zagros.import_rows(tmp_path / "model", {"user": torch.ones(3, 2)}, job=layer)
    # A model that is to be replaced stays if that fails, and may be where rows come from.
    with pytest.raises(ValueError, match="occurs twice"):
        zagros.import_rows(tmp_path / "model", {"user": (["a", "a"], torch.ones(2, 2))}, job=layer, overwrite=True)
    again = zagros.import_rows(tmp_path / "model", {"user": zagros.open(tmp_path / "model").table("user")}, job=layer, overwrite=True)
    again.verify()
    assert again.rows == 3 and len(list(tmp_path.glob("model/*"))) == 4
    with pytest.raises(zagros.ZagrosError, match="could not load rows"):
        layers({"user": 2}, optimizer=zagros.SGD()).load(tmp_path / "model")


@needs_program
def test_a_job_of_the_trainer_starts_from_imported_rows(job: dict[str, Any], tmp_path: Path) -> None:
    users = [f"u{index}" for index in range(20)]
    weights = torch.stack([torch.full((4,), float(index % 2 == 0)) for index in range(20)])
    zagros.import_rows(tmp_path / "start", {"user": (users, weights)}, job=job)
    changes = {"train.start_from": str(tmp_path / "start"), "train.epochs": 1, "embedding.optimizer": {"kind": "adagrad", "lr": 1e-6}}
    lines: list[str] = []
    run = zagros.train(job, changes, program=PROGRAM, progress=lines.append)
    # The rows tell the clicks, and at this rate they have not learned it here.
    assert np.allclose(run.model.table("user").row("u4"), 1.0, atol=1e-3) and np.allclose(run.model.table("user").row("u5"), 0.0, atol=1e-3)
    assert any("begins anew" in line for line in lines), lines


def test_dense_weights_go_out_as_safetensors(bag: nn.EmbeddingBag, tmp_path: Path) -> None:
    net = nn.Linear(DIM, 1)
    model = zagros.import_rows(tmp_path / "model", {"C1": bag}, dense=net.state_dict())
    model.dense_to_safetensors(tmp_path / "net.safetensors")
    assert torch.equal(safetensors.torch.load_file(tmp_path / "net.safetensors")["weight"], net.weight)
    with pytest.raises(FileExistsError, match="overwrite=True"):
        model.dense_to_safetensors(tmp_path / "net.safetensors")
    with pytest.raises(ValueError, match=r"its name ends in \.parquet"):
        model.table("C1").to_parquet(tmp_path / "rows.csv")


def test_a_signal_ends_an_export(tmp_path: Path) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    table = zagros.import_rows(tmp_path / "model", {"C1": torch.ones(1_000_000, 8)}).table("C1")
    old = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, 0.01)
            table.to_parquet(tmp_path / "rows.parquet")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    assert not list(tmp_path.glob("rows*"))


@pytest.mark.parametrize("metric", ["cosine", "dot", "euclidean"])
def test_an_index_of_faiss_finds_the_same_rows(bag: nn.EmbeddingBag, tmp_path: Path, metric: Any) -> None:
    faiss = pytest.importorskip("faiss", reason="faiss is not installed")
    ids = np.random.default_rng(1).integers(0, 2**64, ROWS, np.uint64, endpoint=False)
    table = zagros.import_rows(tmp_path / "model", {"C1": (ids, bag.weight)}).table("C1")
    index = table.to_faiss(metric)
    assert index.ntotal == ROWS and isinstance(index, faiss.IndexIDMap)
    query = table.row(int(ids[5]))[None].copy()  # type: ignore[index]
    if metric == "cosine":
        faiss.normalize_L2(query)
    measures, found = index.search(query, 7)
    expected, values = table.nearest(int(ids[5]), 7, metric)
    assert found[0].view(np.uint64).tolist() == expected.tolist()
    assert np.allclose(np.sqrt(measures[0]) if metric == "euclidean" else measures[0], values, atol=1e-5)


def test_without_faiss_the_error_says_how_to_get_it(bag: nn.EmbeddingBag, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = zagros.import_rows(tmp_path / "model", {"C1": bag}).table("C1")
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(zagros.ZagrosError, match="pip install faiss-cpu"):
        table.to_faiss()
    with pytest.raises(ValueError, match="metric is 'cos'"):
        table.to_faiss("cos")  # type: ignore[arg-type]
