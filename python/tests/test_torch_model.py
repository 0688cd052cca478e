"""Saved models as modules of PyTorch: their scores are those of the program."""

from __future__ import annotations

import copy
import csv
import json
import random
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import PROGRAM, needs_program
from torch import nn

import zagros

pytestmark = needs_program
#: Rows of the test part. Some of their ids were never trained.
TEST_ROWS = 700
SEQUENCE = {"column": "seen", "separator": "|", "sequence": {"length": 4, "pad": "left"}, "table": "item"}
TAGS = {"column": "tags", "separator": "|", "pooling": "mean"}
TWO = ["click", {"column": "buy", "given": "click"}]
THREE = ["click", {"column": "amount", "kind": "regression"}, {"column": "color", "kind": "classes", "classes": ["red", "green", "blue"]}]
DIN = {"categorical": ["user", "item", SEQUENCE, TAGS]}
BST = {"categorical": ["item", {**SEQUENCE, "sequence": {"length": 3, "pad": "right", "keep": "first"}}, "user"]}
PLR = {
    "numeric": [{"column": "list", "width": 2, "separator": " "}, {"column": "age", "missing_indicator": True}, {"column": "height", "standardise": True}],
    "numeric_embedding": {"frequencies": 3, "dim": 3},
}
NETWORKS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "dlrm": ({"kind": "dlrm", "bottom": [6], "top": [8, 5]}, {}, {}),
    "dlrm without numbers": ({"kind": "dlrm", "top": [8]}, {"numeric": []}, {}),
    "ffnn": ({"kind": "ffnn", "hidden": [8, 5]}, {}, {}),
    "dcnv2 stacked": ({"kind": "dcnv2", "cross_layers": 2, "hidden": [8]}, {}, {}),
    "dcnv2 parallel": ({"kind": "dcnv2", "rank": 2, "structure": "parallel", "hidden": [8]}, {}, {}),
    "dcnv2 alone": ({"kind": "dcnv2", "cross_layers": 2, "hidden": []}, {}, {}),
    "deepfm": ({"kind": "deepfm", "hidden": [8]}, {}, {}),
    "deepfm without numbers": ({"kind": "deepfm", "hidden": [8]}, {"numeric": []}, {}),
    "wide_deep": ({"kind": "wide_deep", "hidden": [8]}, {}, {}),
    "wukong": ({"kind": "wukong", "layers": 2, "fmb": 3, "lcb": 2, "rank": 2, "fmb_hidden": [7], "bottom": [5], "top": [6]}, {}, {}),
    "wukong without residual": ({"kind": "wukong", "layers": 2, "fmb": 2, "lcb": 1, "rank": 2, "fmb_hidden": [], "top": [6]}, {"numeric": []}, {}),
    "finalmlp": ({"kind": "finalmlp", "first": [6, 4], "second": [8], "heads": 2}, {}, {}),
    "finalmlp with factors": ({"kind": "finalmlp", "first": [6], "second": [8], "gate": {}}, {}, {}),
    "finalmlp with gates": (
        {"kind": "finalmlp", "first": [6], "second": [8], "heads": 2, "gate": {"hidden": [5], "first": ["user", "age"], "second": ["tags", "height"]}},
        PLR,
        {},
    ),
    "din": ({"kind": "din", "attention_hidden": [6, 4], "hidden": [8]}, DIN, {}),
    "din softmax": ({"kind": "din", "attention_hidden": [6], "hidden": [8], "softmax": True, "activation": "sigmoid"}, DIN, {}),
    "din dice": ({"kind": "din", "attention_hidden": [6, 3], "hidden": [8], "activation": "dice"}, DIN, {"activation": "dice"}),
    "bst": ({"kind": "bst", "layers": 2, "heads": 2, "ffn": 5, "hidden": [8]}, BST, {}),
    "bst causal": ({"kind": "bst", "ffn": 5, "hidden": [8], "causal": True}, DIN, {}),
    "shared_bottom": ({"kind": "shared_bottom", "bottom": [8], "tower": [4]}, {"label": THREE}, {}),
    "esmm": ({"kind": "shared_bottom", "bottom": [], "tower": [4]}, {"label": TWO}, {}),
    "mmoe": ({"kind": "mmoe", "experts": 3, "hidden": [6], "tower": [4]}, {"label": THREE}, {}),
    "ple": ({"kind": "ple", "levels": 2, "shared_experts": 1, "task_experts": 2, "hidden": [6], "tower": []}, {"label": TWO}, {}),
    "ffnn of several": ({"kind": "ffnn", "hidden": [8]}, {"label": THREE}, {}),
    "numeric embedding": ({"kind": "dlrm", "bottom": [6], "top": [8]}, PLR, {}),
    "batch norm": ({"kind": "ffnn", "hidden": [8, 5], "dropout": 0.1}, {}, {"norm": "batch", "activation": "gelu"}),
    "layer norm": ({"kind": "finalmlp", "first": [6], "second": [8]}, {}, {"norm": "layer", "activation": "silu"}),
    "dice": ({"kind": "dcnv2", "hidden": [8]}, {}, {"norm": "batch", "activation": "dice"}),
    "leaky relu": ({"kind": "wide_deep", "hidden": [8]}, {}, {"activation": "leaky_relu"}),
    "elu": ({"kind": "dlrm", "bottom": [6], "top": [8]}, {}, {"activation": "elu"}),
    "tanh": ({"kind": "mmoe", "experts": 2, "hidden": [6]}, {"label": TWO}, {"activation": "tanh"}),
}


def row(chance: random.Random, known: int) -> str:
    """A row of the data with some of the first ids."""
    user, item, age = chance.randrange(known), chance.randrange(known), chance.random()
    seen = "|".join(f"i{chance.randrange(known)}" for _ in range(chance.randrange(7)))
    tags = "|".join(f"t{chance.randrange(known)}" for _ in range(chance.randrange(4)))
    click = int(user % 2 == 0 and age > 0.3)
    shown = "" if chance.random() < 0.1 else f"{age:.3f}"
    numbers = f"{chance.gauss(0, 1):.3f} {chance.gauss(0, 1):.3f}"
    color = chance.choice(["red", "green", "blue"])
    return f"{click},{click and chance.randrange(2)},{age * 3:.3f},{color},u{user},i{item},{shown},{chance.gauss(170, 9):.1f},{seen},{tags},{numbers}"


#: The base of all files of tests, and what was trained, by its job.
_BASES: list[dict[str, Any]] = []
_RUNS: dict[str, zagros.Run] = {}


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A job over rows of all kinds of features, without a network."""
    if not _BASES:
        _BASES.append(made(tmp_path_factory.mktemp("rows")))
    return _BASES[0]


def made(folder: Path) -> dict[str, Any]:
    """The base, with its rows in files."""
    chance = random.Random(1)
    header = "click,buy,amount,color,user,item,age,height,seen,tags,list"
    for name, rows, known in (("train", 1500, 12), ("test", TEST_ROWS, 15)):
        (folder / f"{name}.csv").write_text("\n".join([header, *(row(chance, known) for _ in range(rows))]) + "\n")
    return {
        "name": "net",
        "data": {"format": "delimited", "train": str(folder / "train.csv"), "test": str(folder / "test.csv"), "shuffle_rows": 0},
        "features": {
            "label": "click",
            "numeric": [{"column": "age", "log": True}, {"column": "height", "standardise": True, "missing_indicator": True}],
            "categorical": ["user", TAGS, {"column": "item", "hash_size": 9}],
        },
        "embedding": {"dim": 4, "optimizer": {"kind": "adagrad", "lr": 0.3}, "init": {"kind": "uniform", "bound": 0.5}},
        "optimizer": {"kind": "adam", "lr": 0.02},
        "train": {"batch_size": 100, "threads": 1},
        "cluster": {"durability": "checkpoint"},
        "output": {"folder": str(folder / "runs")},
    }


def trained(base: dict[str, Any], model: dict[str, Any], features: dict[str, Any], **tables: Any) -> zagros.Run:
    """The run of a job with this network."""
    job = copy.deepcopy(base)
    job["features"].update(features)
    job["model"] = model
    for name, keys in tables.items():
        job[name] = {**job.get(name, {}), **keys}
    key = json.dumps(job)
    if key not in _RUNS:
        _RUNS[key] = zagros.train(job, program=PROGRAM, progress=lambda line: None)
    return _RUNS[key]


def predicted(run: zagros.Run, folder: Path) -> np.ndarray:
    """What the program predicts of the test part."""
    command = [PROGRAM, "predict", run.folder, run.folder.parents[1] / "test.csv", "-o", folder / "scores.csv", "--logits", "--uncalibrated"]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    with (folder / "scores.csv").open() as file:
        return np.array([[float(value) for value in line.values()] for line in csv.DictReader(file)], np.float32)


def scored(run: zagros.Run, net: nn.Module) -> np.ndarray:
    """What the module gives for the test part."""
    scores = []
    with torch.no_grad():
        for batch in zagros.data.read(run.folder / "job.toml", part="test"):
            tensors = batch.to_torch()
            scores.append(net(tensors["ids"], tensors["numeric"]).numpy())
    return np.concatenate(scores)


def is_equal(found: np.ndarray, expected: np.ndarray) -> bool:
    """Whether logits differ by at most 1e-6, and large ones by that share of them: neighbours of f32 above 16 are 1.9e-6 apart."""
    return bool((np.abs(found - expected) <= 1e-6 * np.maximum(1, np.abs(expected))).all())


@pytest.mark.parametrize("network", NETWORKS)
def test_scores_are_those_of_the_program(base: dict[str, Any], network: str, tmp_path: Path) -> None:
    model, features, mlp = NETWORKS[network]
    run = trained(base, model, features, mlp=mlp)
    net = run.model.to_torch()
    expected, found = predicted(run, tmp_path), scored(run, net)
    assert found.shape == expected.shape == (TEST_ROWS, len(net.outputs))
    print(f"{network}: largest difference {np.abs(found - expected).max():.1e}, deviation {expected.std(0)}")
    assert (expected.std(0) > 1e-4).all() and is_equal(found, expected)
    # Vectors from elsewhere, such as those of EmbeddingBags, give the same.
    dense = run.model.to_torch(rows=False)
    tensors = next(iter(zagros.data.read(run.folder / "job.toml", part="test"))).to_torch()
    with torch.no_grad():
        alone = dense(net.vectors(tensors["ids"]), tensors["numeric"]).numpy()
    assert np.array_equal(alone, found[: len(alone)])


INITS = [
    {"init": {"kind": "normal", "deviation": 0.4}},
    {"init": {"kind": "truncated_normal", "deviation": 0.4}},
    {"init": {"kind": "xavier", "rows": 20}},
    {"init": {"kind": "constant", "value": 0.3}},
    {"init": {"kind": "normal", "deviation": 0.4}, "element": "bf16"},
    {"init": {"kind": "uniform", "bound": 0.4}, "element": "f16"},
    {"init": {"kind": "normal", "deviation": 0.4}, "element": "int8"},
    {"init": {"kind": "uniform", "bound": 0.4}, "admission": {"kind": "count", "min_count": 300}},
]


@pytest.mark.parametrize("embedding", INITS, ids=lambda keys: f"{keys['init']['kind']} {' '.join(set(keys) - {'init'})}")
def test_ids_without_a_row_are_read_as_the_program_reads_them(base: dict[str, Any], embedding: dict[str, Any], tmp_path: Path) -> None:
    run = trained(base, {"kind": "ffnn", "hidden": [8]}, {}, embedding=embedding, tables={"user": {"dim": 6}}, train={"seed": 2**40 + 7})
    net = run.model.to_torch()
    assert is_equal(scored(run, net), predicted(run, tmp_path))
    ids = torch.from_numpy(np.array([zagros.id_of("u14")], np.uint64).view(np.int64))
    assert not bool(torch.isin(ids, net.get_buffer("tables.user.ids")).any()), "the test part has ids without a row"


def test_it_trains_and_is_saved_as_any_module(base: dict[str, Any], tmp_path: Path) -> None:
    run = trained(base, {"kind": "din", "attention_hidden": [6], "hidden": [8], "activation": "dice", "dropout": 0.2}, DIN, mlp={"norm": "batch"})
    net = run.model.to_torch().train()
    tensors = [batch.to_torch() for batch in zagros.data.read(run.folder / "job.toml")]
    optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
    losses = []
    for batch in tensors * 3:
        loss = nn.functional.binary_cross_entropy_with_logits(net(batch["ids"], batch["numeric"]), batch["labels"])
        optimizer.zero_grad()
        loss.backward()
        assert all(parameter.grad is not None for parameter in net.parameters())
        optimizer.step()
        losses.append(loss.item())
    assert np.mean(losses[-20:]) < 0.9 * np.mean(losses[:20])
    torch.save(net.state_dict(), tmp_path / "net.pt")
    other = run.model.to_torch()
    before = scored(run, other)
    other.load_state_dict(torch.load(tmp_path / "net.pt"))
    after = scored(run, other)
    assert np.array_equal(after, scored(run, net.eval())) and not np.allclose(before, after)


def test_the_average_of_the_weights_is_what_scores(base: dict[str, Any], tmp_path: Path) -> None:
    run = trained(base, {"kind": "ffnn", "hidden": [8]}, {}, train={"ema": 0.9})
    assert is_equal(scored(run, run.model.to_torch()), predicted(run, tmp_path))


def test_what_cannot_be_equal_is_refused_by_name(base: dict[str, Any]) -> None:
    ffnn = {"kind": "ffnn", "hidden": [8]}
    run = trained(base, ffnn, {}, train={"precision": "bf16"})
    with pytest.raises(zagros.ZagrosError, match="train.precision = 'bf16'"):
        run.model.to_torch()
    run = trained(base, ffnn, {"categorical": ["user", {"column": "list", "separator": " ", "weights": "list"}]})
    with pytest.raises(zagros.ZagrosError, match=r"'list' has weights of its values.*rows=False"):
        run.model.to_torch()
    dense = run.model.to_torch(rows=False)
    with pytest.raises(ValueError, match="no vector of 'list'"):
        dense({"user": torch.zeros(2, 4)}, torch.zeros(2, 3))
    with pytest.raises(ValueError, match=r"'list' have the shape \[2, 3\]; it is \[2, 4\]"):
        dense({"user": torch.zeros(2, 4), "list": torch.zeros(2, 3)}, torch.zeros(2, 3))
    with pytest.raises(ValueError, match=r"numeric has the shape \[2, 2\]; it is \[2, 3\]"):
        dense({"user": torch.zeros(2, 4), "list": torch.zeros(2, 4)}, torch.zeros(2, 2))
    assert dense({"user": torch.zeros(2, 4), "list": torch.zeros(2, 4)}, torch.zeros(2, 3)).shape == (2, 1)


def test_ids_of_a_wrong_form_are_refused(base: dict[str, Any]) -> None:
    net = trained(base, {"kind": "din", "attention_hidden": [6], "hidden": [8]}, DIN).model.to_torch()
    numeric, one = torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64)
    ids: dict[str, Any] = {"user": one, "item": one, "seen": torch.zeros(2, 3, dtype=torch.int64), "tags": (one, one)}
    assert net(ids, numeric).shape == (2, 1)
    with pytest.raises(ValueError, match="did you mean 'user'"):
        net({**ids, "usr": one}, numeric)
    with pytest.raises(ValueError, match="'seen' has 5 ids in a sample; its length is 4"):
        net({**ids, "seen": torch.zeros(2, 5, dtype=torch.int64)}, numeric)
    with pytest.raises(ValueError, match=r"it is \[2, 3\]"):
        net(ids)
