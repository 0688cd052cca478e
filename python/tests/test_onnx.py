"""The dense network as a program of ONNX, run by onnxruntime."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from conftest import needs_program
from test_torch_model import NETWORKS, base, trained

import zagros

__all__ = ["base"]
pytestmark = needs_program
#: Each kind of part once: an export takes seconds.
KINDS = ["deepfm without numbers", "dcnv2 parallel", "wukong", "finalmlp with gates", "din", "bst", "ple", "batch norm", "dice"]


@pytest.mark.parametrize("network", KINDS)
def test_its_logits_are_those_of_the_module(base: dict[str, Any], network: str, tmp_path: Path) -> None:
    model, features, mlp = NETWORKS[network]
    saved = trained(base, model, features, mlp=mlp).model
    names = saved.to_onnx(tmp_path / "net.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["net.onnx"]
    with pytest.raises(FileExistsError, match="overwrite=True"):
        saved.to_onnx(tmp_path / "net.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "net.onnx")
    assert [given.name for given in session.get_inputs()] == names
    net = saved.to_torch()
    job = Path(saved.folder).parent / "job.toml"
    for size in (1, 300):
        batch = next(iter(zagros.data.read(job, {"train.batch_size": size}, part="test")))
        tensors = batch.to_torch()
        with torch.no_grad():
            expected = net(tensors["ids"], tensors["numeric"]).numpy()
            vectors = net.vectors(tensors["ids"])
        feed = {"numeric": batch.numeric} if batch.numeric.shape[1] else {}
        for name, found in vectors.items():
            feed[name] = (found[0] if isinstance(found, tuple) else found).numpy()
            if isinstance(found, tuple):
                feed[f"{name}_count"] = found[1].numpy()
        (logits,) = session.run(["logits"], feed)
        assert logits.shape == expected.shape == (size, len(net.outputs))
        assert (np.abs(logits - expected) <= 1e-5 * np.maximum(1, np.abs(expected))).all()


def test_what_is_missing_is_said(base: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = trained(base, {"kind": "ffnn", "hidden": [8]}, {"categorical": [{"column": "user", "name": "numeric"}]}).model
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(zagros.ZagrosError, match="pip install onnx onnxscript"):
        saved.to_onnx(tmp_path / "net.onnx")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    with pytest.raises(zagros.ZagrosError, match="would have one name"):
        saved.to_onnx(tmp_path / "net.onnx")
