"""The job of an embedding layer: tables without data and without a network."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from ._native import job_toml
from .settings import Bag, Init, Optimizer, keys_of


def job_of(
    bags: Mapping[str, Bag],
    *,
    optimizer: Optimizer,
    init: Init,
    servers: int,
    workers: int,
    staleness: int,
    seed: int,
    timeout: float,
    settings: Mapping[str, object],
) -> tuple[str, str]:
    """The TOML that every role gets, and its fingerprint. ``settings`` are keys of docs/job-file.md with dots."""
    tables = {bag.table or name: bag.dim for name, bag in bags.items()}
    label = "label"
    while label in bags:
        label += "_"
    categorical = [{"column": name, "table": bag.table or name, "separator": "|", "pooling": bag.pooling} for name, bag in bags.items()]
    job: dict[str, object] = {
        "name": "embedding-bags",
        # Samples are read by the program that looks rows up.
        "data": {"format": "delimited", "header": False, "columns": [*bags, label], "train": "none"},
        "features": {"label": label, "categorical": categorical},
        "embedding": {"optimizer": keys_of(optimizer), "init": keys_of(init)},
        "tables": {name: {"dim": dim} for name, dim in tables.items()},
        # So is the network theirs.
        "model": {"kind": "ffnn", "hidden": [1]},
        "train": {"staleness": staleness, "seed": seed},
        "cluster": {"servers": servers, "workers": workers, "timeout_seconds": float(timeout), "durability": "checkpoint"},
    }
    if int(settings.get("cluster.workers", workers)) != workers:  # type: ignore[call-overload]
        raise ValueError(f"cluster.workers is {settings['cluster.workers']!r}; it is the number of ranks of torch.distributed, {workers}")
    for key, value in settings.items():
        _set(job, key, value)
    return job_toml(to_json(job), "settings of EmbeddingBags")


def to_json(value: object) -> str:
    """As JSON, with numbers of NumPy and paths as what they stand for."""

    def plain(other: Any) -> Any:
        if isinstance(other, os.PathLike):
            return os.fspath(other)
        if hasattr(other, "tolist"):
            return other.tolist()
        raise TypeError(f"a setting is {other!r}; it is a number, a text, a truth value, a list or a dict")

    return json.dumps(value, default=plain)


def _set(job: dict[str, object], key: str, value: object) -> None:
    *path, last = key.split(".")
    place = job
    for name in path:
        inner = place.setdefault(name, {})
        if not isinstance(inner, dict):
            raise ValueError(f"the setting {key!r} is below {name!r}, which is no table")
        place = inner
    place[last] = value


def absolute(job: Mapping[str, Any]) -> dict[str, Any]:
    """Paths of data start at the current directory, not at the folder of the text."""
    data = job.get("data", {})
    if not isinstance(data, Mapping):
        return dict(job)

    def path(value: Any) -> Any:
        if isinstance(value, str) and "://" not in value and value != "-":
            return str(pathlib.Path(value).absolute())
        return [path(item) for item in value] if isinstance(value, list) else value

    return {**job, "data": {key: path(value) if key in ("train", "test", "validation") else value for key, value in data.items()}}
