"""The input pipeline of the trainer alone: batches of a job's data as NumPy arrays."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from ._arrays import array
from ._job import absolute, to_json
from ._native import BatchReader, job_toml

if TYPE_CHECKING:
    from torch.utils.data import IterableDataset


@dataclass(frozen=True)
class DataBatch:
    """Some samples.

    Attributes:
        labels: float32 ``[samples, labels]``; NaN where a label is missing and may be.
        numeric: Transformed numbers, float32 ``[samples, inputs]``.
        ids: By categorical feature: ids uint64 ``[samples]``; with any number of values a sample, a pair of ids ``[total]`` and
            offsets int64 ``[samples + 1]``. An id is the hash of a value (:func:`zagros.id_of`).
        weights: float32 ``[samples]``; None if each sample counts once.
    """

    labels: npt.NDArray[np.float32]
    numeric: npt.NDArray[np.float32]
    ids: dict[str, npt.NDArray[np.uint64] | tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]]
    weights: npt.NDArray[np.float32] | None

    def __len__(self) -> int:
        return len(self.labels)

    def to_torch(self) -> dict[str, Any]:
        """``labels``, ``numeric``, ``weights``, and ``ids`` as :class:`zagros.EmbeddingBags` takes them: int64, with the offset of
        each sample's first id."""
        import torch

        def tensor(values: npt.NDArray[Any]) -> torch.Tensor:
            # Torch knows no unsigned 64-bit numbers to speak of: these are the same bits.
            return torch.from_numpy((values.view(np.int64) if values.dtype == np.uint64 else values).copy())

        ids = {
            name: (tensor(found[0]), tensor(found[1][:-1])) if isinstance(found, tuple) else tensor(found)
            for name, found in self.ids.items()
        }
        weights = tensor(self.weights) if self.weights is not None else None
        return {"labels": tensor(self.labels), "numeric": tensor(self.numeric), "ids": ids, "weights": weights}


class Reader:
    """Batches of a part of a job's data. Iterate over it as often as you like: the first time is the epoch that :func:`read` was
    given, and each further time is the next epoch, shuffled differently.

    Attributes:
        labels: Names of the columns of ``DataBatch.labels``.
        numeric: Names of the columns of ``DataBatch.numeric``.
        categorical: Names of the features of ``DataBatch.ids``.
    """

    def __init__(self, native: BatchReader, epoch: int) -> None:
        self._native, self._epoch, self._is_fresh = native, epoch, True
        self.labels, self.numeric, self.categorical = native.names()

    def __iter__(self) -> Iterator[DataBatch]:
        if not self._is_fresh:
            self._epoch += 1
            self._native = self._native.reopen(self._epoch)
        self._is_fresh = False
        return self._batches(self._native)

    def to_torch(self) -> IterableDataset[dict[str, Any]]:
        """A dataset of :meth:`DataBatch.to_torch` of each batch, for ``torch.utils.data.DataLoader(dataset, batch_size=None)`` without
        workers: the parsers have threads of their own."""
        from torch.utils.data import IterableDataset

        class Batches(IterableDataset[dict[str, Any]]):
            def __iter__(batches) -> Iterator[dict[str, Any]]:
                return (batch.to_torch() for batch in self)

        return Batches()

    def _batches(self, native: BatchReader) -> Iterator[DataBatch]:
        for _, labels, weights, numeric, features in native:
            ids = {
                name: array(found) if offsets is None else (array(found), array(offsets))
                for name, (found, offsets) in zip(self.categorical, features, strict=True)
            }
            yield DataBatch(array(labels), array(numeric), ids, None if weights is None else array(weights))


def read(
    job: Mapping[str, Any] | str | os.PathLike[str],
    overrides: Mapping[str, object] | None = None,
    *,
    part: Literal["train", "test", "validation"] = "train",
    epoch: int = 0,
) -> Reader:
    """Reads a part of a job's data with the parsers of the trainer, on threads of their own.

    What features leave to be measured, such as ``standardise``, is measured over the training rows first.

    Args:
        job: A job file, or its content as a dict. Paths in a dict start at the current directory.
        overrides: Keys with dots: ``{"train.batch_size": 512}``.
        part: ``"train"``, ``"test"`` or ``"validation"``.
        epoch: The epoch, from 0: each is shuffled differently.

    Raises:
        ValueError: The job is wrong.
        ZagrosError: Data are missing or malformed, with file and line.
    """
    if epoch < 0:
        raise ValueError(f"epoch is {epoch}; the first is 0")
    sets = [f"{key}={to_json(value)}" for key, value in (overrides or {}).items()]
    if isinstance(job, Mapping):
        text, _ = job_toml(to_json(absolute(job)), "the job")
        return Reader(BatchReader(text, "job.toml", sets, part, epoch), epoch)
    return Reader(BatchReader(None, os.fspath(job), sets, part, epoch), epoch)
