"""The dense network of a model as a program of ONNX."""

from __future__ import annotations

import importlib.util
import os
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from ._native import ZagrosError
from ._networks import Inputs
from .torch_model import DenseNetwork

#: Samples of the batch that is traced. One would be taken for a constant.
_SAMPLES = 2
#: Bytes of weights that are in the file itself: one of ONNX has less than 2 GiB.
_ONE_FILE = 1 << 30


class _Flat(nn.Module):
    """The dense network with one tensor for each input of the program."""

    def __init__(self, dense: DenseNetwork) -> None:
        super().__init__()
        self.dense = dense
        self._names = list(self.inputs())

    def inputs(self) -> dict[str, Tensor]:
        """An input of each name, of zeros."""
        dense, made = self.dense, {}
        if dense.numeric_inputs > 0:
            made["numeric"] = torch.zeros(_SAMPLES, dense.numeric_inputs)
        for name, feature in dense.features.items():
            if feature.pooling is not None:
                made[name] = torch.zeros(_SAMPLES, dense.dims[name])
            else:
                made[name] = torch.zeros(_SAMPLES, feature.length, dense.dims[name])
                made[f"{name}_count"] = torch.zeros(_SAMPLES, dtype=torch.int64)
        return made

    def forward(self, *tensors: Tensor) -> Tensor:
        """The logits of a batch."""
        given = dict(zip(self._names, tensors, strict=True))
        vectors = [given[name] for name, feature in self.dense.features.items() if feature.pooling is not None]
        sequences = {
            name: (given[name], feature.real(given[f"{name}_count"]))
            for name, feature in self.dense.features.items()
            if feature.pooling is None
        }
        numeric = given.get("numeric")
        return self.dense.scores(Inputs(tensors[0].new_zeros(tensors[0].shape[0], 0) if numeric is None else numeric, vectors, sequences))


def export(dense: DenseNetwork, file: str | os.PathLike[str]) -> list[str]:
    """Writes the program, and returns the names of its inputs."""
    missing = [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]
    if missing:
        raise ZagrosError(f"torch writes ONNX by the package {missing[0]}, which is not installed; next: pip install onnx onnxscript")
    flat = _Flat(dense).eval()
    inputs = flat.inputs()
    sequences = sum(feature.pooling is None for feature in dense.features.values())
    if len(inputs) < len(dense.features) + sequences + int(dense.numeric_inputs > 0):
        raise ZagrosError("two inputs of the program would have one name: a feature is named \"numeric\" or as the count of a sequence; rename it")
    batch: dict[int, Any] = {0: torch.export.Dim("batch")}
    weights = sum(tensor.numel() * tensor.element_size() for tensor in dense.state_dict().values())
    with warnings.catch_warnings():
        # Of torch's own code, and of an axis that several inputs share.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            flat,
            tuple(inputs.values()),
            os.fspath(file),
            input_names=list(inputs),
            output_names=["logits"],
            dynamic_shapes=(tuple(batch for _ in inputs),),
            dynamo=True,
            external_data=weights > _ONE_FILE,
            verbose=False,
        )
    return list(inputs)
