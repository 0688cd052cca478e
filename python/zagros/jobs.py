"""Jobs: the native trainer as a child process of this one, and its predictions."""

from __future__ import annotations

import json
import os
import pathlib
import tempfile
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Union

import numpy as np
import numpy.typing as npt

from . import _child, _html
from ._child import JobSource, Progress
from ._native import ZagrosError
from .models import Model, open_model

if TYPE_CHECKING:
    import pandas

Path = Union[str, "os.PathLike[str]"]


class Run:
    """A run of the trainer.

    Attributes:
        folder: Its folder.
        summary: What ``summary.json`` says, such as ``summary["evaluation"]["auc"]``.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = pathlib.Path(folder)
        self.summary: dict[str, Any] = json.loads((self.folder / "summary.json").read_text())

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r}, {self.summary.get('outcome')}, {self.summary.get('steps')} steps)"

    def _repr_html_(self) -> str:
        summary, rows = self.summary, []
        for part in ("evaluation", "validation"):
            for name, value in (summary.get(part) or {}).items():
                if name in ("auc", "logloss", "gauc", "rmse", "accuracy", "samples") and value is not None:
                    rows.append((f"{part} {name}", value))
        known = [(name.replace("_", " "), summary[name]) for name in ("outcome", "steps", "samples", "seconds") if summary.get(name) is not None]
        return _html.table(f"Run {self.folder}", [*known, *rows])

    @property
    def metrics(self) -> pandas.DataFrame:
        """The measures of the run over time, one line of ``metrics.jsonl`` a row: ``type`` is ``step``, ``evaluation``, …"""
        import pandas

        lines = (self.folder / "metrics.jsonl").read_text().splitlines()
        return pandas.DataFrame([json.loads(line) for line in lines])

    @property
    def model(self) -> Model:
        """The saved model."""
        place = self.summary.get("model")
        if place is None:
            raise ZagrosError(f"the run {self.folder} saved no model")
        return open_model(self.folder / place)


def train(
    job: JobSource,
    overrides: Mapping[str, object] | None = None,
    *,
    program: Path | None = None,
    progress: Progress | None = None,
) -> Run:
    """Trains a job with the program ``zagros``, and waits for its end.

    Ctrl-C lets the program finish its step and save a checkpoint; the same call then resumes.

    Args:
        job: A job file, or its content as a dict. Paths in a dict start at the current directory.
        overrides: Keys with dots: ``{"train.epochs": 2}``.
        program: The program. Default: ``zagros`` on the PATH.
        progress: Gets each line that the program prints meanwhile. Default: they go to this process's standard error; in a notebook
            with tqdm, a bar is shown.

    Returns:
        The finished run.

    Raises:
        ZagrosError: The program ended with an error, whose text it has.
        ValueError: The job is wrong.
    """
    program = _child.find(program)
    with _child.job_file(job, resolved=True) as path:
        lines = _child.run([program, "train", str(path), "--exit-with-parent", *_child.sets(overrides)], progress)
    return Run(_child.named(lines, r"^\s*run folder\s+(\S.*)", "the folder of its run"))


class Predictions:
    """The scores of rows, in their order.

    Attributes:
        file: Where they are. Without ``output`` it is temporary, and goes with this object.
        rows: How many.
        malformed: Rows that were malformed, by what ``bad_rows`` makes of them.
    """

    def __init__(
        self, file: pathlib.Path, summary: Mapping[str, Any], keys: int, folder: tempfile.TemporaryDirectory[str] | None
    ) -> None:
        self.file, self._keys = file, keys
        self.rows, self.malformed = int(summary["rows"]), int(summary["malformed"])
        self._folder = folder

    def __repr__(self) -> str:
        return f"Predictions({str(self.file)!r}, {self.rows} rows)"

    def to_pandas(self) -> pandas.DataFrame:
        """A frame with the keys, and a column for each score."""
        import pandas

        if self.file.suffix == ".parquet":
            return pandas.read_parquet(self.file)
        if self.file.suffix == ".jsonl":
            return pandas.read_json(self.file, lines=True, dtype=False)
        return pandas.read_csv(self.file)

    def to_numpy(self) -> npt.NDArray[np.float64]:
        """The scores without the keys: float64 ``[rows]``, or ``[rows, columns]`` for several labels or classes."""
        frame = self.to_pandas()
        scores = np.asarray(frame[list(frame.columns)[self._keys :]], np.float64)
        return scores[:, 0] if scores.shape[1] == 1 else scores


def _listed(data: Any) -> list[Any]:
    """What is in a list; a frame is none, although its columns have names."""
    return [data] if hasattr(data, "columns") or hasattr(data, "dtype") else list(data)


def predict(
    model: Model | Run | Path | Sequence[Model | Run | Path],
    data: Path | Sequence[Path],
    output: Path | None = None,
    *,
    keys: Sequence[str] = (),
    logits: bool = False,
    calibrated: bool = True,
    average: Literal["scores", "logits"] = "scores",
    bad_rows: Literal["refuse", "skip", "empty"] = "refuse",
    overwrite: bool = False,
    overrides: Mapping[str, object] | None = None,
    program: Path | None = None,
    progress: Progress | None = None,
) -> Predictions:
    """Scores the rows of files with a saved model and the program ``zagros``, and waits for its end.

    Args:
        model: A model or a run, or the folder of one. The scores of several are averaged.
        data: Files with rows in any format that the program reads, with or without the label.
        output: File for the scores: ``.csv``, ``.jsonl`` or ``.parquet``. Default: a temporary one.
        keys: Columns of the data before the scores, such as the id of the row.
        logits: Whether scores are logits. Otherwise that of a click is a probability.
        calibrated: Whether the model's calibration is applied, if it has one.
        average: What is averaged over several models.
        bad_rows: What becomes of malformed rows.
        overwrite: Whether ``output`` is replaced if it exists.
        overrides: Keys of the model's job, with dots: ``{"data.threads": 4}``.
        program: The program. Default: ``zagros`` on the PATH.
        progress: Gets each line that the program prints. Default: they go to this process's standard error.

    Raises:
        ZagrosError: The program ended with an error, whose text it has.
    """
    if isinstance(keys, str):
        raise TypeError(f"keys is {keys!r}; it is a list of columns, such as [{keys!r}]")
    if not isinstance(data, (str, os.PathLike)) and not all(isinstance(one, (str, os.PathLike)) for one in _listed(data)):
        raise TypeError(f"data is {type(data).__name__}; it is a file or a list of files: write rows to one, such as frame.to_parquet(file)")
    program = _child.find(program)
    models = [model] if isinstance(model, (Model, Run, str, os.PathLike)) else list(model)
    files = [data] if isinstance(data, (str, os.PathLike)) else list(data)
    if not models or not files:
        raise ValueError("there is nothing to score: give a model and a file of rows at least")
    folder = tempfile.TemporaryDirectory(prefix="zagros-") if output is None else None
    file = pathlib.Path(folder.name, "scores.parquet") if folder else pathlib.Path(output or "")
    if file.suffix not in (".csv", ".jsonl", ".parquet"):
        raise ValueError(f"output is {str(file)!r}; its ending is .csv, .jsonl or .parquet")
    places = ",".join(str(one.folder) if isinstance(one, (Model, Run)) else os.fspath(one) for one in models)
    command = [program, "predict", places, *(os.fspath(one) for one in files), "--output", str(file), "--json", "--bad-rows", bad_rows]
    for flag, is_given in (("--logits", logits), ("--uncalibrated", not calibrated), ("--force", overwrite)):
        command += [flag] if is_given else []
    command += ["--average", average] if len(models) > 1 else []
    command += ["--keys", ",".join(keys)] if keys else []
    lines = _child.run([*command, *_child.sets(overrides)], progress)
    return Predictions(file, json.loads(_child.named(lines, r"^(\{.*\})$", "what it wrote")), len(keys), folder)
