"""Rows from elsewhere as a saved model: weights of PyTorch, entries of a TorchRec ``state_dict``, arrays, Parquet, safetensors."""

from __future__ import annotations

import difflib
import itertools
import os
import pathlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Union

import numpy as np
import numpy.typing as npt

from . import _child
from ._child import JobSource
from ._job import job_of
from ._native import NativeRowWriter, ZagrosError, id_of
from ._saved import MANIFEST, Content, conclude, start
from .models import Ids, Model, RowBlock, SavedTable, open_model
from .settings import Adagrad, Bag, Init, Optimizer, Uniform

if TYPE_CHECKING:
    from torch import Tensor, nn

    from .embedding import EmbeddingBags

#: The file of all rows.
_ROWS = "rows-0-of-1.zrows"
#: Bytes of rows that are handed over at a time.
_BLOCK = 32 << 20
#: What columns and tensors of files are called, by what they are.
_IDS, _WEIGHTS = ("id", "ids"), ("weights", "vector", "embedding")
#: Numbers that float32 holds exactly.
_EXACT = ("float32", "float16", "bfloat16")

#: Ids of rows: int64 or uint64 ``[rows]``, or the texts of the values in the data, whose ids are their hashes.
RowIds = Union[npt.ArrayLike, "Tensor", Sequence[str]]
#: Rows of a table. Without ids, row i has the id i.
RowSource = Union["Tensor", "nn.Module", npt.NDArray[Any], tuple[RowIds, Any], str, "os.PathLike[str]", RowBlock, SavedTable, Iterable[RowBlock]]


@dataclass(frozen=True)
class _Source:
    """Rows of one table, a block at a time."""

    dim: int
    #: What a row has.
    parts: list[str]
    blocks: Iterator[RowBlock]


def import_rows(
    folder: str | os.PathLike[str],
    rows: Mapping[str, RowSource],
    *,
    job: JobSource | EmbeddingBags | None = None,
    optimizer: Optimizer | None = None,
    init: Init | None = None,
    dense: nn.Module | Mapping[str, Tensor] | None = None,
    overwrite: bool = False,
) -> Model:
    """Writes rows from elsewhere as the folder of a saved model.

    :meth:`zagros.EmbeddingBags.load`, ``zagros inspect`` and the setting ``train.start_from`` of a job read it. Each id of a table has
    one row. A file, a saved table and blocks are read a part at a time, so they may be larger than memory, but for 8 bytes a row.

    Args:
        folder: The folder of the model; made if it is not there.
        rows: By table: a weight ``[rows, dim]`` as a tensor, an array, an ``nn.Embedding`` or an ``nn.EmbeddingBag``, whose row i gets
            the id i; a pair of ids ``[rows]`` and rows ``[rows, dim]``; the name of a file ``.parquet`` (columns ``id`` and ``weights``
            or ``vector``) or ``.safetensors`` (tensors ``ids`` and ``weights``); a table of :func:`zagros.open`; or blocks of rows, such
            as :class:`zagros.RowBlock` with the optimiser's state. Weights are float32, float16 or bfloat16.
        job: Whose tables they are: a layer, a job file or its content. Default: a table for each name of ``rows``, as
            ``zagros.EmbeddingBags({name: dim, …}, optimizer=optimizer)`` has them.
        optimizer: How the rows will learn, without ``job``. Default: ``zagros.Adagrad()``. Without state in ``rows``, a row has that of a
            new row.
        init: First value of rows that come later, without ``job``. Default: ``zagros.Uniform()``.
        dense: The network on top, or its ``state_dict``.
        overwrite: Whether a model in the folder is replaced.

    Returns:
        The model.

    Raises:
        ValueError: Rows do not fit their table, an id occurs twice, or a value is not finite.
        TypeError: A tensor has another type.
        ZagrosError: The folder holds a model, or a file cannot be read or written.
    """
    if not rows:
        raise ValueError("there are no rows; give them by table, such as {\"C1\": bag.weight}")
    place = pathlib.Path(folder).absolute()
    if (place / MANIFEST).is_file() and not overwrite:
        raise ZagrosError(f"{place} holds a model; choose another folder, or pass overwrite=True")
    sources = {name: _source(name, source) for name, source in rows.items()}
    if job is not None and (optimizer is not None or init is not None):
        raise ValueError("job= has an optimiser and first values; give either job= or optimizer= and init=")
    text, name = _job_text(job, sources, optimizer or Adagrad(), init or Uniform())
    content = _dense_bytes(dense)
    place.mkdir(parents=True, exist_ok=True)
    # An older model in the folder stays until all rows are written, which may come from it.
    temporary = place / f"{_ROWS}.tmp"
    try:
        writer = NativeRowWriter(text, name, str(temporary))
        tables = {table: (number, parts) for number, (table, _, parts) in enumerate(writer.tables())}
        for table, source in sources.items():
            if table not in tables:
                near = difflib.get_close_matches(table, tables, 1)
                raise ValueError(f"the job has no table {table!r}; " + (f"did you mean {near[0]!r}?" if near else f"there are {', '.join(tables)}"))
            number, parts = tables[table]
            for ids, columns in _columns(table, source, dict(parts)):
                writer.add(number, ids.__dlpack__(), [column.__dlpack__() for column in columns])
        size, sha256, count = writer.finish()
        start(str(place))
        os.replace(temporary, place / _ROWS)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    resolved, fingerprint = writer.job()
    conclude(str(place), [(_ROWS, size, sha256)], count, Content(0, 0, 0, content), resolved, fingerprint, name=pathlib.Path(name).stem)
    return open_model(place)


def torchrec_tables(state_dict: Mapping[str, Any]) -> dict[str, Tensor]:
    """The weights of the tables in a ``state_dict`` of a TorchRec model, by table: what :func:`import_rows` takes.

    These are the entries of ``EmbeddingBagCollection`` and ``EmbeddingCollection``: ``….embedding_bags.TABLE.weight`` and
    ``….embeddings.TABLE.weight``, each ``[rows, dim]``.

    Raises:
        ValueError: There is none, or two collections have a table of one name.
        ZagrosError: A table is spread over several processes.
    """
    found: dict[str, Tensor] = {}
    for key, value in state_dict.items():
        match = re.search(r"(?:^|\.)(?:embedding_bags|embeddings)\.(.+)\.weight$", key)
        if match is None:
            continue
        if match[1] in found:
            raise ValueError(f"two collections have a table {match[1]!r}; give its weight to import_rows() under a name of your own")
        found[match[1]] = _whole(key, value)
    if not found:
        shown = ", ".join(list(state_dict)[:5]) or "nothing"
        raise ValueError(f"no entry is named like embedding_bags.TABLE.weight; the first ones are {shown}")
    return found


def _whole(key: str, value: Any) -> Tensor:
    """The tensor of an entry; of one that is sharded, if this process has all of it."""
    if hasattr(value, "full_tensor"):
        whole: Tensor = value.full_tensor()
        return whole
    if not hasattr(value, "local_shards"):
        tensor: Tensor = value
        return tensor
    shards = value.local_shards()
    if len(shards) != 1 or shards[0].tensor.shape != value.size():
        raise ZagrosError(
            f"{key} is spread over several processes, and this one has {len(shards)} shards of it; gather it first, for instance by "
            "torch.distributed.checkpoint into a file, or give each shard as a pair of ids and rows"
        )
    own: Tensor = shards[0].tensor
    return own


def _job_text(job: JobSource | EmbeddingBags | None, sources: Mapping[str, _Source], optimizer: Optimizer, init: Init) -> tuple[str, str]:
    """The TOML of a job, and its name."""
    if job is None:
        bags = {name: Bag(source.dim) for name, source in sources.items()}
        text, _ = job_of(bags, optimizer=optimizer, init=init, servers=1, workers=1, staleness=4, seed=1, timeout=60.0, settings={})
        return text, "embedding-bags.toml"
    own = getattr(job, "job", None)
    if isinstance(own, str):
        return own, "embedding-bags.toml"
    with _child.job_file(job, resolved=True) as path:  # type: ignore[arg-type]
        return path.read_text(), path.name


def _dense_bytes(dense: nn.Module | Mapping[str, Tensor] | None) -> bytes:
    if dense is None:
        import safetensors.numpy

        return bytes(safetensors.numpy.save({}))
    import safetensors.torch

    state = dense if isinstance(dense, Mapping) else dense.state_dict()
    return bytes(safetensors.torch.save({name: tensor.detach().contiguous().cpu() for name, tensor in state.items()}))


def _columns(table: str, source: _Source, wanted: Mapping[str, int]) -> Iterator[tuple[Ids, list[npt.NDArray[np.float32]]]]:
    """The ids and parts of a table's rows, checked, some megabytes at a time."""
    # What is beside the weights and of no use to this optimiser is left.
    names = [name for name in wanted if name in source.parts]
    if len(names) not in (1, len(wanted)):
        missing = ", ".join(name for name in wanted if name not in names)
        raise ValueError(f"the rows of {table!r} have {', '.join(names)}, but no {missing}; give weights alone, or all of them")
    for block in source.blocks:
        ids, columns = block.ids, [_values(table, name, block.parts[name], wanted[name], len(block.ids)) for name in names]
        step = max(1, _BLOCK // (4 * sum(wanted.values())))
        for first in range(0, len(ids), step):
            # DLPack takes no array that is read-only.
            part = [np.require(column[first : first + step], requirements=["C", "W"]) for column in columns]
            yield np.require(ids[first : first + step], requirements=["C", "W"]), part


def _values(table: str, name: str, values: npt.NDArray[Any], width: int, rows: int) -> npt.NDArray[np.float32]:
    if values.ndim == 1 and width == 1:
        values = values[:, None]
    if values.shape != (rows, width):
        raise ValueError(f"{name} of {table!r} have the shape {list(values.shape)}; {rows} ids of this table need [{rows}, {width}]")
    if not np.isfinite(values).all():
        raise ValueError(f"{name} of {table!r} have a value that is not finite, in row {int(np.argmin(np.isfinite(values).all(axis=1)))} of its block")
    return np.asarray(values, np.float32)


def _source(table: str, source: Any) -> _Source:
    """The rows of a table, whatever they are given as."""
    if isinstance(source, SavedTable):
        return _Source(source.dim, source.parts, source.batches(state=True))
    if isinstance(source, RowBlock):
        return _of_blocks(table, iter([source]))
    if isinstance(source, (str, os.PathLike)):
        return _of_file(table, pathlib.Path(source))
    if isinstance(source, tuple):
        if len(source) != 2:
            raise ValueError(f"the rows of {table!r} are {len(source)} values; give a pair of ids and rows")
        weights = _array(table, source[1])
        ids = _ids(table, source[0])
        if len(ids) != len(weights):
            raise ValueError(f"{table!r} has {len(ids)} ids and {len(weights)} rows")
        return _of_blocks(table, iter([RowBlock(ids, {"weights": weights})]))
    weight = getattr(source, "weight", source)
    if hasattr(weight, "__array__") or hasattr(weight, "detach"):
        weights = _array(table, weight)
        return _of_blocks(table, iter([RowBlock(np.arange(len(weights), dtype=np.uint64), {"weights": weights})]))
    if isinstance(source, Iterable) and not isinstance(source, (list, Mapping)):
        return _of_blocks(table, iter(source))
    raise TypeError(f"the rows of {table!r} are {type(source).__name__}; give a tensor [rows, dim], a pair of ids and rows, a file or blocks")


def _of_blocks(table: str, blocks: Iterator[RowBlock]) -> _Source:
    first = next(blocks, None)
    if first is None:
        raise ValueError(f"there are no rows of {table!r}; leave the table out, and it is empty")
    if not isinstance(first, RowBlock) or "weights" not in first.parts:
        raise TypeError(f"the rows of {table!r} are no blocks with weights; give zagros.RowBlock(ids, {{\"weights\": rows}})")

    def checked() -> Iterator[RowBlock]:
        for block in itertools.chain([first], blocks):
            parts = {name: _array(table, values, name) for name, values in block.parts.items()}
            yield RowBlock(_ids(table, block.ids), parts)

    shape = np.shape(first.weights)
    return _Source(int(shape[-1]) if len(shape) == 2 else 1, list(first.parts), checked())


def _array(table: str, values: Any, name: str = "weights") -> npt.NDArray[Any]:
    """Numbers that float32 holds exactly, as an array."""
    kind = str(getattr(values, "dtype", type(values).__name__)).removeprefix("torch.")
    if kind not in _EXACT:
        raise TypeError(f"{name} of {table!r} are {kind}; give float32, float16 or bfloat16, such as rows.float()")
    if hasattr(values, "detach"):
        values = values.detach().cpu().float().numpy()
    array = np.asarray(values, np.float32)
    if array.ndim != 2 and name == "weights":
        raise ValueError(f"{name} of {table!r} have the shape {list(array.shape)}; it is [rows, dim]")
    return array


def _ids(table: str, ids: Any) -> Ids:
    """Ids as uint64 ``[rows]``. The 64 bits of a negative number stay."""
    if hasattr(ids, "detach"):
        ids = ids.detach().cpu().numpy()
    if isinstance(ids, (list, tuple)) and all(isinstance(one, str) for one in ids) and ids:
        return np.fromiter(map(id_of, ids), np.uint64, len(ids))
    array = np.asarray(ids)
    if array.dtype.kind in ("U", "O") and all(isinstance(one, str) for one in array.tolist()):
        return np.fromiter(map(id_of, array.tolist()), np.uint64, array.size)
    if array.dtype.kind not in "iu":
        raise TypeError(f"ids of {table!r} are {array.dtype}; give int64 or uint64, since floats do not hold all 64 bits, or texts")
    if array.ndim != 1:
        raise ValueError(f"ids of {table!r} have the shape {list(array.shape)}; it is [rows]")
    return np.ascontiguousarray(array.astype(np.int64 if array.dtype.kind == "i" else np.uint64).view(np.uint64))


def _of_file(table: str, path: pathlib.Path) -> _Source:
    if not path.is_file():
        raise ZagrosError(f"{path}, with rows of {table!r}, is no file")
    if path.suffix == ".parquet":
        return _of_blocks(table, _parquet(path))
    if path.suffix == ".safetensors":
        return _of_blocks(table, _safetensors(path))
    raise ValueError(f"the rows of {table!r} are in {str(path)!r}; a file of rows is named .parquet or .safetensors")


def _named(path: pathlib.Path, names: Iterable[str], wanted: Sequence[str]) -> str:
    found = [name for name in names if name in wanted]
    if len(found) != 1:
        raise ZagrosError(f"{path} has {', '.join(names) or 'nothing'}; one of them is to be named {' or '.join(wanted)}")
    return found[0]


def _parquet(path: pathlib.Path) -> Iterator[RowBlock]:
    import pyarrow
    import pyarrow.parquet

    with pyarrow.parquet.ParquetFile(path) as file:
        names = file.schema_arrow.names
        id_name, weights_name = _named(path, names, _IDS), _named(path, names, _WEIGHTS)
        # What is beside is the optimiser's state, if it is made of floats.
        others = [name for name in names if name not in (id_name, weights_name) and _holds_floats(file.schema_arrow.field(name).type)]
        for batch in file.iter_batches(columns=[id_name, weights_name, *others]):
            ids = batch.column(id_name)
            if ids.null_count:
                raise ValueError(f"{path} has a row without an id")
            own = ids.to_pylist() if pyarrow.types.is_string(ids.type) or pyarrow.types.is_large_string(ids.type) else ids.to_numpy(zero_copy_only=False)
            parts = {"weights": _list_column(path, weights_name, batch.column(weights_name))}
            parts |= {name: _list_column(path, name, batch.column(name)) for name in others}
            yield RowBlock(own, parts)


def _holds_floats(kind: Any) -> bool:
    import pyarrow

    inner = kind.value_type if hasattr(kind, "value_type") else kind
    return bool(pyarrow.types.is_float32(inner))


def _list_column(path: pathlib.Path, name: str, column: Any) -> npt.NDArray[Any]:
    """A column of lists of one length ``[rows, values]``, or of single values ``[rows]``."""
    import pyarrow.compute

    if column.null_count:
        raise ValueError(f"{path} has a row without {name}")
    if not hasattr(column.type, "value_type"):
        values: npt.NDArray[Any] = column.to_numpy(zero_copy_only=False)
        return values
    lengths = pyarrow.compute.list_value_length(column).to_numpy(zero_copy_only=False)
    shortest, longest = (int(lengths.min()), int(lengths.max())) if len(lengths) else (1, 1)
    if shortest != longest:
        raise ValueError(f"{path} has {name} of {shortest} to {longest} values; all rows of a table have as many")
    return np.asarray(column.flatten().to_numpy(zero_copy_only=False)).reshape(len(column), longest)


def _safetensors(path: pathlib.Path) -> Iterator[RowBlock]:
    import safetensors

    with safetensors.safe_open(path, framework="np") as file:
        names = list(file.keys())
        kinds = {name: str(file.get_slice(name).get_dtype()) for name in names}
    # NumPy has no bfloat16.
    framework = "pt" if "BF16" in kinds.values() else "np"
    weights_name = _named(path, names, (*_WEIGHTS, "weight"))
    id_name = next((name for name in names if name in _IDS), None)
    others = [name for name in names if name not in (id_name, weights_name) and kinds[name] == "F32"]
    with safetensors.safe_open(path, framework=framework) as file:
        slices = {name: file.get_slice(name) for name in (weights_name, *others)}
        shape = slices[weights_name].get_shape()
        if len(shape) != 2:
            raise ValueError(f"{weights_name} in {path} has the shape {shape}; it is [rows, dim]")
        if id_name is None:
            ids = np.arange(shape[0], dtype=np.uint64)
        else:
            with safetensors.safe_open(path, framework="np") as own:
                ids = own.get_tensor(id_name)
        if len(ids) != shape[0] or any(slices[name].get_shape()[0] != shape[0] for name in others):
            raise ValueError(f"{path} has {len(ids)} ids and {shape[0]} rows, or a tensor beside them that is of other rows")
        step = max(1, _BLOCK // (4 * max(1, shape[1])))
        for first in range(0, max(1, shape[0]), step):
            end = min(first + step, shape[0])
            parts = {("weights" if name == weights_name else name): part[first:end] for name, part in slices.items()}
            yield RowBlock(ids[first:end], parts)

