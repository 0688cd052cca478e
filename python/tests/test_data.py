"""Batches of a job's data from the native parsers."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import zagros


def test_batches_are_the_rows_of_the_files(job: dict[str, Any], tmp_path: Path) -> None:
    job["data"]["shuffle_rows"] = 0
    reader = zagros.data.read(job, {"train.batch_size": 512}, part="test")
    assert (reader.labels, reader.numeric, reader.categorical) == (["click"], ["age"], ["user"])
    batches = list(reader)
    rows = list(csv.DictReader((tmp_path / "test.csv").open()))
    assert [len(batch) for batch in batches] == [512, 488] and len(rows) == 1000
    labels = np.concatenate([batch.labels for batch in batches])
    ages = np.concatenate([batch.numeric for batch in batches])
    ids = np.concatenate([batch.ids["user"] for batch in batches])
    assert labels[:, 0].tolist() == [float(row["click"]) for row in rows]
    assert np.allclose(ages[:, 0], [float(row["age"]) for row in rows])
    assert ids.tolist() == [zagros.id_of(row["user"]) for row in rows]
    assert batches[0].weights is None


def test_epochs_are_shuffled_and_measured_features_are_measured(job: dict[str, Any]) -> None:
    job["features"]["numeric"] = [{"column": "age", "standardise": True}]

    def ages(epoch: int) -> np.ndarray:
        return np.concatenate([batch.numeric[:, 0] for batch in zagros.data.read(job, epoch=epoch)])

    first, second = ages(0), ages(1)
    assert len(first) == 3000 and not np.array_equal(first, second) and np.array_equal(np.sort(first), np.sort(second))
    assert abs(first.mean()) < 1e-5 and abs(first.std() - 1) < 1e-3 and np.array_equal(first, ages(0))


def test_a_reader_reads_again_in_the_next_epoch(job: dict[str, Any]) -> None:
    def labels(batches: Any) -> list[float]:
        return [float(age) for batch in batches for age in batch["numeric"][:, 0]]

    reader = zagros.data.read(job, epoch=1)
    loader = torch.utils.data.DataLoader(reader.to_torch(), batch_size=None)
    again = [labels(loader), labels(loader)]
    one_by_one = [labels(batch.to_torch() for batch in zagros.data.read(job, epoch=epoch)) for epoch in (1, 2)]
    assert again == one_by_one and again[0] != again[1] and sorted(again[0]) == sorted(again[1])


def test_any_number_of_values_goes_into_an_embedding_layer(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("label,tags,user\n1,a|b,x\n0,,y\n1,b,x\n")
    job = {
        "data": {"format": "delimited", "train": str(tmp_path / "rows.csv"), "shuffle_rows": 0},
        "features": {"label": "label", "categorical": ["user", {"column": "tags", "separator": "|"}]},
        "model": {"kind": "ffnn", "hidden": [1]},
    }
    batch = next(iter(zagros.data.read(job)))
    tags = batch.ids["tags"]
    assert isinstance(tags, tuple) and tags[1].tolist() == [0, 2, 2, 3]
    assert tags[0].tolist() == [zagros.id_of(value) for value in "abb"]
    ids = batch.to_torch()["ids"]
    with zagros.EmbeddingBags({"user": 2, "tags": 2}, init=zagros.Constant(1.0)) as layer:
        vectors = layer(ids)
        assert vectors["tags"].tolist() == [[2.0, 2.0], [0.0, 0.0], [1.0, 1.0]]
        assert torch.equal(vectors["user"], torch.ones(3, 2))
        layer.release()


def test_what_is_wrong_is_said_with_its_place(job: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no validation part"):
        zagros.data.read(job, part="validation")
    with pytest.raises(ValueError, match="epoch is -1"):
        zagros.data.read(job, epoch=-1)
    with pytest.raises(ValueError, match='part is "trains"'):
        zagros.data.read(job, part="trains")  # type: ignore[arg-type]
    (tmp_path / "test.csv").write_text("click,user,age\n1,u1,old\n")
    with pytest.raises(zagros.ZagrosError, match=r"test.csv:2"):
        list(zagros.data.read(job, part="test"))
    job["data"]["train"] = "nowhere.csv"
    with pytest.raises(zagros.ZagrosError, match="nowhere.csv"):
        zagros.data.read(job)
    with pytest.raises(ValueError, match="did you mean"):
        zagros.data.read(job, {"train.batch_sizes": 3})
