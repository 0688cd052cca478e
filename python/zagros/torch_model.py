"""A saved model as a module of PyTorch: what ``Model.to_torch`` returns."""

from __future__ import annotations

import importlib
import pathlib
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Union

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ._first_rows import FirstRows
from ._ids import FlatIds, Ids, flatten
from ._layers import NumericEmbedding, Weights
from ._native import ZagrosError
from ._networks import Dcnv2, DeepFm, Dlrm, Ffnn, FinalMlp, Form, Inputs, Mmoe, Network, Ple, SharedBottom, WideDeep, Wukong
from ._saved import DENSE
from ._sequence_networks import Bst, Din
from .settings import Bag

#: The vector of a feature ``[batch, dim]``, or of a sequence its vectors ``[batch, length, dim]``, zeros where padded, and the number
#: of real ones int64 ``[batch]``.
Vectors = Union[Tensor, tuple[Tensor, Tensor]]
#: By the name that a job gives them.
_NETWORKS: dict[str, type[Network]] = {
    "dlrm": Dlrm,
    "ffnn": Ffnn,
    "dcnv2": Dcnv2,
    "deepfm": DeepFm,
    "wide_deep": WideDeep,
    "wukong": Wukong,
    "finalmlp": FinalMlp,
    "din": Din,
    "bst": Bst,
    "shared_bottom": SharedBottom,
    "mmoe": Mmoe,
    "ple": Ple,
}


@dataclass(frozen=True)
class Feature:
    """A categorical feature of the job.

    Attributes:
        name: Its name.
        table: The name of its table.
        pooling: How rows become one vector; None for a sequence.
        length: Positions of a sequence; 0 without one.
        pads_left: Whether the padding of a sequence is before its values.
        weighted: Whether each value has a weight.
    """

    name: str
    table: str
    pooling: str | None
    length: int
    pads_left: bool
    weighted: bool

    def places(self, ids: FlatIds) -> tuple[Tensor, Tensor, Tensor]:
        """The sample of each id, its position among the ids of the sample, and the ids of each sample."""
        if ids.offsets is not None:
            counts, starts = ids.offsets.diff(), ids.offsets[:-1]
        else:
            counts = torch.full((ids.samples,), ids.per_sample or 0)
            starts = counts.cumsum(0) - counts
        sample = torch.repeat_interleave(torch.arange(ids.samples), counts)
        return sample, torch.arange(len(sample)) - starts[sample], counts

    def vectors(self, ids: FlatIds, rows: Tensor) -> Vectors:
        """The vectors of a batch, from a row ``[ids, dim]`` for each id."""
        if self.pooling is not None and ids.per_sample == 1:
            return rows
        sample, position, counts = (tensor.to(rows.device) for tensor in self.places(ids))
        if self.pooling is not None:
            pooled = rows.new_zeros(ids.samples, rows.shape[1]).index_add(0, sample, rows)
            shares = counts.clamp(min=1).to(rows.dtype).unsqueeze(1)
            return pooled if self.pooling == "sum" else pooled * (1 / (shares if self.pooling == "mean" else shares.sqrt()))
        if len(counts) and int(counts.max()) > self.length:
            raise ValueError(f"the sequence {self.name!r} has {int(counts.max())} ids in a sample; its length is {self.length}")
        if self.pads_left:
            position = position + self.length - counts[sample]
        values = rows.new_zeros(ids.samples, self.length, rows.shape[1])
        return values.index_put((sample, position), rows), counts

    def real(self, counts: Tensor) -> Tensor:
        """Which positions are real, bool ``[batch, length]``."""
        position = torch.arange(self.length, device=counts.device)
        counts = counts.unsqueeze(1)
        return position + counts >= self.length if self.pads_left else position < counts


class Table(nn.Module):
    """All rows of a table, found by their ids.

    Attributes:
        rows: The weights, ``[rows, dim]``, in ascending order of :attr:`ids`.
        ids: int64 ``[rows]``: the 64 bits of each id as a signed number.
    """

    ids: Tensor

    def __init__(self, ids: npt.NDArray[np.uint64], weights: npt.NDArray[np.float32], first: FirstRows) -> None:
        super().__init__()
        signed = ids.view(np.int64)
        order = np.argsort(signed)
        self.rows = nn.Embedding(len(signed), weights.shape[1], _weight=torch.from_numpy(weights[order]))
        self.register_buffer("ids", torch.from_numpy(signed[order]))
        self._first = first

    def forward(self, ids: Tensor) -> Tensor:
        """A row for each id, ``[ids, dim]``; one without a row has its first value, which does not learn."""
        if len(self.ids) == 0:
            return self._first.of(ids)
        place = torch.searchsorted(self.ids, ids).clamp(max=len(self.ids) - 1)
        found: Tensor = self.rows(place)
        unknown = self.ids[place] != ids
        if bool(unknown.any()):
            found = found.index_put((unknown.nonzero().squeeze(1),), self._first.of(ids[unknown]))
        return found


class DenseNetwork(nn.Module):
    """The dense network of a model: numbers and vectors to logits.

    Attributes:
        features: The categorical features by name.
        dims: Values of a vector of each.
        outputs: The names of the columns of what it returns.
    """

    def __init__(self, job: Mapping[str, Any], dims: Mapping[str, int], tensors: Mapping[str, Any]) -> None:
        super().__init__()
        _check(job)
        features = job["features"]
        self.features = {feature.name: feature for feature in map(_feature, features.get("categorical", []))}
        self.dims = {name: dims[feature.table] for name, feature in self.features.items()}
        numeric = [number if isinstance(number, Mapping) else {"column": number} for number in features.get("numeric", [])]
        inputs = [int(number.get("width", 1)) + int(number.get("missing_indicator", False)) for number in numeric]
        #: Numbers of a sample.
        self.numeric_inputs = sum(inputs)
        weights = Weights(tensors, job["mlp"], float(job["model"].get("dropout", 0.0)))
        self.numbers, widths = None, inputs
        if "numeric_embedding" in features:
            embedded = [sum(inputs[:index]) for index, number in enumerate(numeric) if "width" not in number]
            more = int(features["numeric_embedding"]["dim"]) - 1
            widths = [width + (more if "width" not in number else 0) for number, width in zip(numeric, inputs, strict=True)]
            self.numbers = NumericEmbedding(weights, embedded, self.numeric_inputs)
        targets = features["label"] if isinstance(features["label"], list) else [features["label"]]
        self._targets = [target if isinstance(target, Mapping) else {"column": target} for target in targets]
        counts = [len(target.get("classes", [])) if target.get("kind") == "classes" else 1 for target in self._targets]
        self.outputs = [
            name if target.get("kind") != "classes" else f"{name}_{label}"
            for target in self._targets
            for name in [str(target.get("name", target["column"]))]
            for label in (target.get("classes", []) if target.get("kind") == "classes" else [""])
        ]
        self._firsts = [sum(counts[:index]) for index in range(len(counts))]
        vectors = {name: dim for name, dim in self.dims.items() if self.features[name].pooling is not None}
        named = [(str(number.get("name", number["column"])), width) for number, width in zip(numeric, widths, strict=True)]
        form = Form(weights, job["model"], _spans([*named, *vectors.items()]), vectors, self.numeric_inputs > 0, counts)
        self.network = _NETWORKS[job["model"]["kind"]](form)
        weights.finish()

    def forward(self, vectors: Mapping[str, Vectors], numeric: Tensor | None = None) -> Tensor:
        """The outputs of a batch, ``[batch, outputs]``: logits of clicks and classes.

        Args:
            vectors: By categorical feature: its vector ``[batch, dim]``; of a sequence a pair of its vectors ``[batch, length, dim]`` and
                the number of its real positions int64 ``[batch]``.
            numeric: Numbers as :func:`zagros.data.read` gives them, ``[batch, inputs]``. Not needed if there are none.

        Raises:
            ValueError: A feature is missing, or a shape is wrong.
        """
        own, sequences, batch = [], {}, -1
        for name, feature in self.features.items():
            if name not in vectors:
                raise ValueError(f"there is no vector of {name!r}; the features are {', '.join(self.features)}")
            found = vectors[name]
            if isinstance(found, tuple) != (feature.pooling is None):
                raise ValueError(f"{name!r} needs {'a pair of vectors and counts' if feature.pooling is None else 'one tensor of vectors'}")
            values = found[0] if isinstance(found, tuple) else found
            shape = [len(values) if batch < 0 else batch, *([feature.length] if feature.pooling is None else []), self.dims[name]]
            if list(values.shape) != shape:
                raise ValueError(f"the vectors of {name!r} have the shape {list(values.shape)}; it is {shape}")
            batch = shape[0]
            if isinstance(found, tuple):
                sequences[name] = (values, feature.real(found[1]))
            else:
                own.append(values)
        if numeric is None and self.numeric_inputs == 0:
            numeric = torch.zeros(batch, 0, device=own[0].device if own else None)
        if numeric is None or numeric.shape[1:] != (self.numeric_inputs,) or (batch >= 0 and len(numeric) != batch):
            shape = [] if numeric is None else list(numeric.shape)
            raise ValueError(f"numeric has the shape {shape}; it is [{max(batch, 0) or 'batch'}, {self.numeric_inputs}]")
        return self.scores(Inputs(numeric, own, sequences))

    def scores(self, inputs: Inputs) -> Tensor:
        """As :meth:`forward`, of inputs that are right."""
        numeric = inputs.numeric if self.numbers is None else self.numbers(inputs.numeric)
        out: Tensor = self.network(Inputs(numeric, inputs.vectors, inputs.sequences))
        return self._finished(out)

    def _finished(self, out: Tensor) -> Tensor:
        """A target that is given another one: the logit of both (Ma et al. 2018)."""
        names = [target.get("name", target["column"]) for target in self._targets]
        columns = list(out.unbind(1))
        for first, target in zip(self._firsts, self._targets, strict=True):
            if target.get("given") is not None:
                a, b = out[:, self._firsts[names.index(target["given"])]], out[:, first]
                columns[first] = -torch.logsumexp(torch.stack([-a, -b, -a - b]), 0)
        return torch.stack(columns, 1)


class TorchModel(nn.Module):
    """A saved model with its rows: ids and numbers to logits.

    Attributes:
        tables: The tables by name; a dot in a name is ``__dot__``.
        dense: The dense network.
    """

    def __init__(self, dense: DenseNetwork, tables: Mapping[str, Table]) -> None:
        super().__init__()
        self.dense = dense
        self.tables = nn.ModuleDict({_key(name): table for name, table in tables.items()})
        self._bags = {name: Bag(dense.dims[name]) for name in dense.features}

    @property
    def outputs(self) -> list[str]:
        """The names of the columns of what it returns."""
        return self.dense.outputs

    def vectors(self, ids: Mapping[str, Ids]) -> dict[str, Vectors]:
        """What :attr:`dense` reads of these ids."""
        found = flatten(self._bags, ids) if self._bags else {}
        vectors: dict[str, Vectors] = {}
        for name, feature in self.dense.features.items():
            table = self.tables[_key(feature.table)]
            assert isinstance(table, Table)
            vectors[name] = feature.vectors(found[name], table(found[name].flat.to(table.ids.device)))
        return vectors

    def forward(self, ids: Mapping[str, Ids], numeric: Tensor | None = None) -> Tensor:
        """The outputs of a batch, ``[batch, outputs]``: logits of clicks and classes.

        Args:
            ids: By categorical feature: int64 ``[batch]``, or a pair of all ids and the position of each sample's first, as
                ``zagros.data.read(job)`` and ``batch.to_torch()["ids"]`` give them.
            numeric: Numbers, float32 ``[batch, inputs]``. Not needed if there are none.
        """
        out: Tensor = self.dense(self.vectors(ids), numeric)
        return out


def build(
    text: str,
    folder: pathlib.Path,
    dims: Mapping[str, int],
    weights: Callable[[], Mapping[str, npt.NDArray[Any]]],
    rows: Callable[[str], tuple[npt.NDArray[np.uint64], npt.NDArray[np.float32]]] | None,
) -> TorchModel | DenseNetwork:
    """The module of a saved model, from its job, its folder, and the dims of its tables.

    Args:
        weights: Reads the weights of the dense network by name.
        rows: Reads ids and weights of a table by its name; None for a module without rows.
    """
    job = _toml(text)
    _check(job)
    other = "train.ema" if job["train"].get("ema") else "train.weights = \"streamed\"" if job["train"].get("weights") == "streamed" else None
    if other and folder.parent.name == "checkpoints":
        raise ZagrosError(f"{folder} is a checkpoint of a job with {other}: the dense weights that score are not in its {DENSE}; use the saved model")
    dense = DenseNetwork(job, dims, weights()).eval()
    if rows is None:
        return dense
    weighted = [name for name, feature in dense.features.items() if feature.weighted]
    if weighted:
        raise ZagrosError(f"the feature {weighted[0]!r} has weights of its values, which ids alone do not give; use to_torch(rows=False)")
    # Tables are numbered as features name them.
    numbers = {name: number for number, name in enumerate(dict.fromkeys(feature.table for feature in dense.features.values()))}
    tables = {}
    for name, number in numbers.items():
        settings = {**job["embedding"], **job.get("tables", {}).get(name, {})}
        init = settings["init"] if settings["admission"]["kind"] == "always" else None
        first = FirstRows(int(job["train"]["seed"]), number, dims[name], init, settings["element"])
        tables[name] = Table(*rows(name), first)
    return TorchModel(dense, tables).eval()


def _check(job: Mapping[str, Any]) -> None:
    """Refuses what this module cannot do, by its name."""
    kind, precision = job["model"]["kind"], job["train"].get("precision", "f32")
    if kind == "torchscript":
        raise ZagrosError(f"the network is a TorchScript module of its own: load {job['model']['file']} with torch.jit.load")
    if kind not in _NETWORKS:
        raise ZagrosError(f"to_torch() does not know the network {kind!r}; it knows {', '.join(_NETWORKS)}")
    if precision != "f32":
        raise ZagrosError(f"the model was trained with train.precision = {precision!r}, whose products PyTorch rounds otherwise: its scores would differ")


def _feature(keys: Any) -> Feature:
    if isinstance(keys, str):
        return Feature(keys, keys, "sum", 0, False, False)
    name = keys.get("name") or keys.get("column") or "_x_".join(keys["cross"])
    sequence = keys.get("sequence", {})
    pooling = None if sequence else keys.get("pooling", "sum")
    return Feature(name, keys.get("table", name), pooling, int(sequence.get("length", 0)), sequence.get("pad") == "left", "weights" in keys)


def _spans(widths: Iterable[tuple[str, int]]) -> list[tuple[str, range]]:
    spans, end = [], 0
    for name, width in widths:
        spans.append((name, range(end, end + width)))
        end += width
    return spans


def _key(table: str) -> str:
    """Names of modules have no dots."""
    return table.replace(".", "__dot__")


def _toml(text: str) -> dict[str, Any]:
    name = "tomllib" if sys.version_info >= (3, 11) else "tomli"
    try:
        parser = importlib.import_module(name)
    except ImportError:
        raise ZagrosError("Python 3.10 reads no TOML by itself; next: pip install tomli") from None
    return dict(parser.loads(text))
