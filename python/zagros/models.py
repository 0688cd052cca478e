"""Saved models as data: rows of tables as NumPy, Arrow or pandas, dense weights as arrays."""

from __future__ import annotations

import hashlib
import os
import pathlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
import numpy.typing as npt

from . import _html
from ._arrays import array
from ._native import NativeTable, ZagrosError, id_of, saved_tables
from ._saved import JOB, Manifest, open_manifest, write_file

if TYPE_CHECKING:
    import pandas
    import pyarrow

    from .torch_model import DenseNetwork, TorchModel

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.uint64]
Metric = Literal["cosine", "dot", "euclidean"]
#: Rows, and values of each, that a notebook shows.
_SHOWN = 5
#: Bytes that are hashed at a time.
_CHUNK = 1 << 20


@dataclass(frozen=True)
class RowBlock:
    """Some rows of a table.

    Attributes:
        ids: uint64 ``[rows]``.
        parts: float32 ``[rows, values]`` by name: ``weights``, and with state what the optimiser keeps.
    """

    ids: Ids
    parts: dict[str, Floats]

    @property
    def weights(self) -> Floats:
        """The weights, float32 ``[rows, dim]``."""
        return self.parts["weights"]


class SavedTable:
    """An embedding table of a saved model.

    Attributes:
        name: Its name.
        dim: Values of a row.
        element: How weights are stored: ``f32``, ``f16``, ``bf16`` or ``int8``. They are read as float32, which is exact.
        parts: What a row has: ``weights``, then what the optimiser keeps.
    """

    def __init__(self, files: list[tuple[str, str]], name: str, dim: int, element: str, parts: list[str]) -> None:
        self.name, self.dim, self.element, self.parts = name, dim, element, parts
        self._native = NativeTable(files, name)

    def __repr__(self) -> str:
        return f"SavedTable({self.name!r}, dim={self.dim}, {self.element}, {', '.join(self.parts)})"

    def _repr_html_(self) -> str:
        first = next(self.batches(), None)
        shown = [] if first is None else zip(first.ids[:_SHOWN], first.weights[:_SHOWN], strict=True)
        rows = [(str(id), *(float(value) for value in weights[:_SHOWN]), *(["…"] if self.dim > _SHOWN else [])) for id, weights in shown]
        title = f"Table {self.name}: dim {self.dim}, {self.element}, {', '.join(self.parts)}; its first rows"
        return _html.table(title, rows, ("id", *(str(index) for index in range(min(self.dim, _SHOWN))), *(["…"] if self.dim > _SHOWN else [])))

    def batches(self, state: bool = False) -> Iterator[RowBlock]:
        """All rows, a block of some thousands at a time: for tables larger than memory.

        Args:
            state: Whether blocks have what the optimiser keeps.
        """
        for ids, parts in self._native.blocks(state):
            yield RowBlock(array(ids), {name: array(values) for name, values in parts})

    def to_numpy(self, state: bool = False) -> RowBlock:
        """All rows at once, in the order of the files."""
        blocks = list(self.batches(state))
        names = self.parts if state else self.parts[:1]
        if not blocks:
            empty = {name: np.zeros((0, self.dim if name == "weights" else 0), np.float32) for name in names}
            return RowBlock(np.zeros(0, np.uint64), empty)
        parts = {name: np.concatenate([block.parts[name] for block in blocks]) for name in names}
        return RowBlock(np.concatenate([block.ids for block in blocks]), parts)

    def to_arrow(self, state: bool = False) -> pyarrow.Table:
        """All rows as a table of Arrow: column ``id`` of uint64, and a column of lists of floats for each part."""
        import pyarrow

        rows = self.to_numpy(state)
        columns: dict[str, Any] = {"id": pyarrow.array(rows.ids)}
        for name, values in rows.parts.items():
            flat = pyarrow.array(values.reshape(-1))
            columns[name] = pyarrow.FixedSizeListArray.from_arrays(flat, max(values.shape[1], 1))
        return pyarrow.table(columns)

    def to_pandas(self, state: bool = False) -> pandas.DataFrame:
        """All rows as a frame: the index is the id, and a column ``weights_0`` … for each value of each part."""
        import pandas

        rows = self.to_numpy(state)
        columns = {f"{name}_{index}": values[:, index] for name, values in rows.parts.items() for index in range(values.shape[1])}
        return pandas.DataFrame(columns, index=pandas.Index(rows.ids, name="id"))

    def to_parquet(self, file: str | os.PathLike[str], state: bool = False, *, overwrite: bool = False) -> int:
        """Writes all rows as Parquet, as ``zagros inspect --export`` does: some megabytes of rows are in memory at a time.

        Columns are ``id`` of uint64 and ``weights``, a list of ``dim`` floats; with ``state`` a column for each part of the optimiser's
        state. :func:`zagros.import_rows` reads it. The file is written whole or not at all.

        Args:
            file: Its name ends in ``.parquet``.
            state: Whether it has what the optimiser keeps.
            overwrite: Whether a file of that name is replaced.

        Returns:
            How many rows.

        Raises:
            FileExistsError: There is such a file.
            ZagrosError: The rows cannot be read, or the file cannot be written.
        """
        return self._export(file, ".parquet", state, overwrite)

    def to_safetensors(self, file: str | os.PathLike[str], state: bool = False, *, overwrite: bool = False) -> int:
        """As :meth:`to_parquet`, with tensors ``ids`` uint64 ``[rows]`` and ``weights`` ``[rows, dim]`` in the type they are stored in."""
        return self._export(file, ".safetensors", state, overwrite)

    def _export(self, file: str | os.PathLike[str], ending: str, state: bool, overwrite: bool) -> int:
        path = pathlib.Path(file)
        if path.suffix != ending:
            raise ValueError(f"the file is {str(path)!r}; its name ends in {ending}")
        _check_new(path, overwrite)
        return self._native.export(str(path), state)

    def to_faiss(self, metric: Metric = "cosine") -> Any:
        """An exact index of FAISS over all rows, in memory. Needs ``faiss`` (``pip install faiss-cpu``).

        Its ids are int64, as FAISS has them: ``index.search(queries, k)[1].view(numpy.uint64)`` are those of this table.

        Args:
            metric: ``dot`` or ``cosine`` (inner products, larger is nearer; rows are scaled to length 1 for cosines, and so must queries
                be), or ``euclidean`` (squared distances, smaller is nearer).

        Returns:
            A ``faiss.IndexIDMap``.

        Raises:
            ZagrosError: ``faiss`` is not installed.
        """
        _check_metric(metric)
        try:
            import faiss
        except ImportError:
            raise ZagrosError("to_faiss() needs the package faiss, which is not installed; next: pip install faiss-cpu") from None
        flat = faiss.IndexFlatL2(self.dim) if metric == "euclidean" else faiss.IndexFlatIP(self.dim)
        index = faiss.IndexIDMap(flat)
        for block in self.batches():
            rows = np.ascontiguousarray(block.weights)
            if metric == "cosine":
                rows = rows.copy()
                faiss.normalize_L2(rows)
            index.add_with_ids(rows, block.ids.view(np.int64))
        return index

    @overload
    def row(self, id: int | np.integer[Any] | str, state: Literal[False] = False) -> Floats: ...

    @overload
    def row(self, id: int | np.integer[Any] | str, state: Literal[True]) -> dict[str, Floats]: ...

    def row(self, id: int | np.integer[Any] | str, state: bool = False) -> Floats | dict[str, Floats]:
        """One row: its weights float32 ``[dim]``, or with ``state`` all parts by name.

        Args:
            id: The id, or the text of a value in the data, whose id is its hash.

        Raises:
            KeyError: There is no such row.
        """
        found = self._native.row(_id(id))
        if found is None:
            raise KeyError(f"table {self.name!r} has no row of {id!r}; only ids that occurred in training have rows")
        parts = {name: array(values) for name, values in found}
        return parts if state else parts["weights"]

    def nearest(self, to: int | np.integer[Any] | str | Floats, k: int = 10, metric: Metric = "cosine") -> tuple[Ids, Floats]:
        """The ``k`` rows that are nearest to a row or a vector, the nearest first; exact, by reading all rows.

        Args:
            to: An id, the text of a value, or a vector ``[dim]``.
            k: How many.
            metric: ``cosine`` or ``dot`` (larger is nearer), or ``euclidean`` (smaller is nearer).

        Returns:
            Ids uint64 and measures float32, each ``[k]`` or as many as there are rows. A row is near itself.
        """
        _check_metric(metric)
        if k < 1:
            raise ValueError(f"k is {k}; it is 1 or more")
        vector = self.row(to) if isinstance(to, (int, str, np.integer)) else to
        vector = np.asarray(vector, np.float32)
        if vector.shape != (self.dim,):
            raise ValueError(f"the vector has the shape {list(vector.shape)}; rows of {self.name!r} have [{self.dim}]")
        if not np.isfinite(vector).all():
            raise ValueError("the vector has a value that is not finite")
        ids, measures = np.zeros(0, np.uint64), np.zeros(0, np.float32)
        for block in self.batches():
            ids = np.concatenate([ids, block.ids])
            measures = np.concatenate([measures, _measure(block.weights, vector, metric)])
            order = np.argsort(measures if metric == "euclidean" else -measures, kind="stable")[:k]
            ids, measures = ids[order], measures[order]
        return ids, measures


class Model:
    """A saved model: what :func:`zagros.open` returns."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._files = [(str(manifest.folder / name), sha256.hex()) for name, _, sha256 in manifest.row_files()]
        found = saved_tables([path for path, _ in self._files])
        #: The tables by name.
        self.tables: dict[str, tuple[int, str, list[str]]] = {name: (dim, element, parts) for name, dim, element, parts in found}

    def __repr__(self) -> str:
        return f"Model({str(self.folder)!r}, {self.steps} steps, {len(self.tables)} tables, {self.rows} rows)"

    def _repr_html_(self) -> str:
        rows = [(name, dim, element, ", ".join(parts)) for name, (dim, element, parts) in self.tables.items()]
        measures = "".join(f", {name} {self.evaluation[name]:.4f}" for name in ("auc", "logloss") if self.evaluation and name in self.evaluation)
        title = f"Model {self.folder}: {self.steps:,} steps, {self.rows:,} rows{measures}"
        return _html.table(title, rows, ("table", "dim", "weights", "parts of a row"))

    @property
    def folder(self) -> pathlib.Path:
        """Where it is."""
        return self._manifest.folder

    @property
    def steps(self) -> int:
        """Steps trained."""
        return self._manifest.steps

    @property
    def rows(self) -> int:
        """Rows of all tables."""
        return int(self._manifest.keys["rows"])

    @property
    def evaluation(self) -> dict[str, Any] | None:
        """Measures of the held-out part, such as ``auc``; None without one."""
        evaluation = self._manifest.keys.get("evaluation")
        return dict(evaluation) if evaluation is not None else None

    @property
    def job(self) -> str:
        """The resolved job file, as TOML."""
        return self._manifest.file(JOB).decode()

    def table(self, name: str) -> SavedTable:
        """A table by its name.

        Raises:
            KeyError: There is no such table.
        """
        if name not in self.tables:
            raise KeyError(f"the model has no table {name!r}; there are {', '.join(self.tables)}")
        return SavedTable(self._files, name, *self.tables[name])

    def dense(self) -> dict[str, npt.NDArray[Any]]:
        """The weights of the dense network by name."""
        import safetensors.numpy

        return dict(safetensors.numpy.load(self._manifest.file(self._manifest.keys["dense"])))

    def dense_to_safetensors(self, file: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Writes the weights of the dense network as safetensors, by name and as they were saved.

        Raises:
            FileExistsError: There is such a file, and it is not to be replaced.
        """
        path = pathlib.Path(file)
        _check_new(path, overwrite)
        write_file(path, self._manifest.file(self._manifest.keys["dense"]))

    @overload
    def to_torch(self, *, rows: Literal[True] = True) -> TorchModel: ...

    @overload
    def to_torch(self, *, rows: Literal[False]) -> DenseNetwork: ...

    def to_torch(self, *, rows: bool = True) -> TorchModel | DenseNetwork:
        """An equal module of PyTorch in eval mode, whose logits are those of ``zagros predict --logits --uncalibrated``.

        Args:
            rows: Whether the rows are in it, all in memory: it then takes ids. Without them it takes vectors, such as those of
                :class:`zagros.EmbeddingBags`.

        Raises:
            ZagrosError: It cannot be equal, and why.
        """
        from .torch_model import build

        def read(name: str) -> tuple[Ids, Floats]:
            block = self.table(name).to_numpy()
            return block.ids, block.weights

        dims = {name: dim for name, (dim, _, _) in self.tables.items()}
        return build(self.job, self.folder, dims, self.dense, read if rows else None)

    def to_onnx(self, file: str | os.PathLike[str], *, overwrite: bool = False) -> list[str]:
        """Writes the dense network as a program of ONNX, for any number of samples; rows are looked up outside. Needs ``onnx`` and ``onnxscript``.

        Its inputs are ``numeric``, float32 ``[batch, inputs]``, if there are numbers, and for each categorical feature by its name its
        vector, float32 ``[batch, dim]``; of a sequence, its vectors ``[batch, length, dim]``, zeros where padded, and as ``NAME_count``
        the number of real ones, int64 ``[batch]``. :meth:`zagros.torch_model.TorchModel.vectors` makes them of ids. Its output is
        ``logits``, float32 ``[batch, outputs]``.

        Returns:
            The names of the inputs.

        Raises:
            FileExistsError: There is such a file, and it is not to be replaced.
            ZagrosError: A package is missing, or the network cannot be equal, and why.
        """
        from ._onnx import export

        _check_new(pathlib.Path(file), overwrite)
        return export(self.to_torch(rows=False), file)

    def verify(self) -> None:
        """Compares every file with what was saved.

        Raises:
            ZagrosError: A file is damaged, missing or of another save.
        """
        for file in self._manifest.keys["files"]:
            digest = hashlib.sha256()
            with open(self.folder / file["name"], "rb") as content:
                while chunk := content.read(_CHUNK):
                    digest.update(chunk)
            if digest.hexdigest() != file["sha256"]:
                raise ZagrosError(f"{self.folder / file['name']} is not the file that was saved; use another save")


def open_model(folder: str | os.PathLike[str]) -> Model:
    """Opens the folder of a model, or of the run that saved it. No row is read yet."""
    if "://" in os.fspath(folder):
        raise ZagrosError(f"zagros.open reads folders on a disk, and {folder} is none; copy it to one")
    return Model(open_manifest(str(pathlib.Path(folder))))


def _id(value: int | np.integer[Any] | str) -> int:
    if isinstance(value, str):
        return id_of(value)
    # Negative ids are the same 64 bits.
    return int(value) % (1 << 64) if -(1 << 63) <= value < 1 << 64 else int(value)


def _check_new(path: pathlib.Path, overwrite: bool) -> None:
    if path.exists() and not overwrite:
        raise FileExistsError(f"{path} exists and is kept; choose another name, or pass overwrite=True")


def _check_metric(metric: str) -> None:
    if metric not in ("cosine", "dot", "euclidean"):
        raise ValueError(f"metric is {metric!r}; it is \"cosine\", \"dot\" or \"euclidean\"")


def _measure(weights: Floats, vector: Floats, metric: Metric) -> Floats:
    if metric == "euclidean":
        return np.asarray(np.linalg.norm(weights - vector, axis=1), np.float32)
    dot = weights @ vector
    if metric == "dot":
        return dot
    lengths = np.linalg.norm(weights, axis=1) * np.linalg.norm(vector)
    return np.asarray(dot / np.maximum(lengths, np.finfo(np.float32).tiny), np.float32)
