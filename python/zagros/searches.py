"""Sweeps and scaling laws: the program ``zagros`` trains a job many times, as a child process of this one."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Union

from . import _child, _html
from ._child import JobSource, Progress
from ._native import ZagrosError
from .jobs import Path, Run

if TYPE_CHECKING:
    import pandas

#: The line that names the folder of a search.
_FOLDER = r" side by side,(?: about [^,]+,)? in (.+)$"


@dataclass(frozen=True)
class Range:
    """Numbers that a sweep chooses from, whole ones if both ends are.

    Args:
        low: The least.
        high: The greatest.
        log: Whether they are even in the logarithm.
    """

    low: float
    high: float
    log: bool = False

    def __str__(self) -> str:
        return f"{json.dumps(self.low)}..{json.dumps(self.high)}{':log' if self.log else ''}"


#: What a sweep tries of a key.
Values = Union[Range, Sequence[object]]


@dataclass(frozen=True)
class Trial:
    """A trial of a sweep.

    Attributes:
        number: Its number.
        values: The value of each key that is searched.
        auc: AUC of the validation part; None if it was not measured.
        logloss: Log loss of it, nats.
        gauc: Grouped AUC, with ``eval.group_by``.
        steps: Steps trained.
        seconds: How long it took.
        failed: Why it failed; None if it did not.
        folder: Its folder, with its run and what it printed (``log.txt``).
    """

    number: int
    values: dict[str, Any]
    auc: float | None
    logloss: float | None
    gauc: float | None
    steps: int
    seconds: float
    failed: str | None
    folder: pathlib.Path

    @property
    def run(self) -> Run:
        """Its run, with its curves, and its model if ``save_models`` was given."""
        summaries = sorted(self.folder.glob("*/summary.json"))
        if not summaries:
            raise ZagrosError(f"trial {self.number} has no finished run; what it printed is in {self.folder / 'log.txt'}")
        return Run(summaries[-1].parent)


@dataclass(frozen=True)
class Sweep:
    """A sweep.

    Attributes:
        folder: Its folder.
        metric: What trials are compared by.
        trials: The trials that were made, the best first.
        best: The best one; None if none was measured.
    """

    folder: pathlib.Path
    metric: str
    trials: list[Trial]
    best: Trial | None

    def _repr_html_(self) -> str:
        rows = [(trial.number, *map(str, trial.values.values()), "" if trial.auc is None else trial.auc, trial.seconds) for trial in self.trials]
        head = ("trial", *(self.trials[0].values if self.trials else ()), "auc", "seconds")
        return _html.table(f"Sweep {self.folder}: {len(self.trials)} trials, the best first", rows, head)

    @property
    def best_job(self) -> pathlib.Path:
        """The job file of the best trial: ``zagros.train(sweep.best_job)`` trains it."""
        return self.folder / "best.toml"

    def to_pandas(self) -> pandas.DataFrame:
        """A frame with a row for each trial, the best first: its values and its measures."""
        import pandas

        measures = ("auc", "logloss", "gauc", "steps", "seconds", "failed")
        rows = [{"trial": trial.number, **trial.values, **{name: getattr(trial, name) for name in measures}} for trial in self.trials]
        return pandas.DataFrame(rows)


def sweep(
    job: JobSource,
    space: Mapping[str, Values],
    overrides: Mapping[str, object] | None = None,
    *,
    search: Literal["grid", "random", "tpe"] = "grid",
    trials: int = 20,
    seed: int = 1,
    jobs: int | None = None,
    halving: bool = False,
    metric: Literal["auc", "logloss", "gauc"] = "auc",
    budget: str | None = None,
    folder: Path | None = None,
    save_models: bool = False,
    program: Path | None = None,
    progress: Progress | None = None,
) -> Sweep:
    """Trains a job with many settings, and waits for the end. The same call goes on after Ctrl-C or the end of its budget.

    Args:
        job: A job file, or its content as a dict. It has a validation part, on which trials are compared.
        space: What is tried of each key: ``{"embedding.dim": [8, 16], "embedding.optimizer.lr": zagros.Range(1e-3, 1e-1, log=True)}``.
        overrides: Keys with dots, of all trials.
        search: All combinations of lists, values by chance, or by the tree-structured Parzen estimator.
        trials: How many trials ``random`` and ``tpe`` make.
        seed: Of what is chosen by chance.
        jobs: Trials side by side. Default: one for each two cores.
        halving: Whether only the best third goes on, up to three times.
        metric: What trials are compared by.
        budget: When to stop: ``"30m"``.
        folder: Folder of the sweep. Default: NAME-sweep in ``output.folder``.
        save_models: Whether the model of each trial is saved.
        program: The program. Default: ``zagros`` on the PATH.
        progress: Gets each line that the program prints. Default: they go to this process's standard error.

    Raises:
        ZagrosError: The program ended with an error, whose text it has.
        ValueError: The job is wrong, or nothing is searched.
    """
    program = _child.find(program)
    if not space:
        raise ValueError("nothing is searched; give space={\"embedding.dim\": [8, 16]}")
    options = ["--metric", metric, *_optional({"--jobs": jobs, "--budget": budget, "--folder": folder})]
    for key, values in space.items():
        listed = str(values) if isinstance(values, Range) else ",".join(map(json.dumps, values))
        options += [f"--{search}", f"{key}={listed}"]
    if search != "grid":
        options += ["--trials", str(trials), "--seed", str(seed)]
    options += [flag for flag, is_given in (("--halving", halving), ("--save-models", save_models)) if is_given]
    with _child.job_file(job, resolved=False) as path:
        lines = _child.run([program, "sweep", str(path), *options, *_child.sets(overrides)], progress)
    return open_sweep(_child.named(lines, _FOLDER, "the folder of the sweep"))


def open_sweep(folder: Path) -> Sweep:
    """The sweep of a folder, finished or not."""
    place = pathlib.Path(folder)
    keys = json.loads((place / "sweep.json").read_text())

    def trial(found: dict[str, Any]) -> Trial:
        number = int(found["trial"])
        values = {key: _parsed(text) for key, text in found["values"].items()}
        measures = {name: found[name] for name in ("auc", "logloss", "gauc", "steps", "seconds", "failed")}
        return Trial(number, values, **measures, folder=place / f"trial-{number:03}")

    made = [trial(found) for found in keys["trials"]]
    return Sweep(place, str(keys["metric"]), made, next((one for one in made if one.number == keys["best"]), None))


@dataclass(frozen=True)
class Forecast:
    """What the next size would bring.

    Attributes:
        size: The size.
        loss: Its log loss by the law, nats.
        low: Lower end of the 90 % interval.
        high: Upper end.
        last: Log loss of the largest size that was trained.
        made: Whether the forecast is made. Otherwise the interval shows no gain, and the numbers are only what the law says.
    """

    size: str
    loss: float
    low: float
    high: float
    last: float
    made: bool


@dataclass(frozen=True)
class ScalingLaw:
    """A family of sizes and the law that was fitted.

    Attributes:
        folder: Its folder.
        runs: What was measured: ``size``, ``share``, ``parameters``, ``samples``, ``seed``, ``loss``, ``auc``, ``seconds`` each.
        law: The form of the law, its floor and its terms; None without one.
        problem: Why there is no law; None with one.
        forecast: That of the next size; None without one.
        verified: Log loss of the next size, which was trained; None without ``verify``.
    """

    folder: pathlib.Path
    runs: list[dict[str, Any]]
    law: dict[str, Any] | None
    problem: str | None
    forecast: Forecast | None
    verified: float | None

    def to_pandas(self) -> pandas.DataFrame:
        """A frame with a row for each measurement."""
        import pandas

        return pandas.DataFrame(self.runs)


def scaling_law(
    job: JobSource,
    overrides: Mapping[str, object] | None = None,
    *,
    sizes: Sequence[str | int] | None = None,
    next_size: str | int | None = None,
    seeds: int = 3,
    data: Sequence[float] | None = None,
    budget: str = "30m",
    jobs: int | None = None,
    verify: bool = False,
    folder: Path | None = None,
    program: Path | None = None,
    progress: Progress | None = None,
) -> ScalingLaw:
    """Trains a job's network in several sizes, fits a law and forecasts the next size. The same call goes on after Ctrl-C.

    Args:
        job: A job file, or its content as a dict. Its widths are open: it lists no ``hidden`` and no ``top``.
        overrides: Keys with dots, of all runs.
        sizes: Weights of the dense network, three at least: ``["111k", "590k", "1.3m"]``. Default: as the program has it.
        next_size: The size to forecast. Default: as much larger than the largest as that is than the one before.
        seeds: Runs of each size.
        data: Shares of the training rows after which each run is measured. Default: an eighth, a quarter, a half and all.
        budget: End within this time; ``"0s"`` for no limit.
        jobs: Runs side by side. Default: one for each two cores.
        verify: Whether the next size is trained after its forecast.
        folder: Folder of the family. Default: NAME-scaling in ``output.folder``.
        program: The program. Default: ``zagros`` on the PATH.
        progress: Gets each line that the program prints. Default: they go to this process's standard error.

    Raises:
        ZagrosError: The program ended with an error, whose text it has.
        ValueError: The job is wrong.
    """
    program = _child.find(program)
    listed = {"--sizes": sizes, "--data": data}
    options = _optional({flag: ",".join(map(str, values)) for flag, values in listed.items() if values is not None})
    options += _optional({"--next": next_size, "--jobs": jobs, "--folder": folder, "--budget": budget, "--seeds": seeds})
    options += ["--verify"] if verify else []
    with _child.job_file(job, resolved=False) as path:
        lines = _child.run([program, "scaling-law", str(path), *options, *_child.sets(overrides)], progress)
    return open_scaling_law(_child.named(lines, _FOLDER, "the folder of the family"))


def open_scaling_law(folder: Path) -> ScalingLaw:
    """The family of a folder."""
    place = pathlib.Path(folder)
    keys = json.loads((place / "scaling-law.json").read_text())
    forecast, verification = keys.get("forecast"), keys.get("verification")
    if forecast is not None:
        numbers = forecast["forecast"]
        measures = {name: float(numbers[name]) for name in ("loss", "low", "high", "last")}
        forecast = Forecast(size=str(forecast["size"]), **measures, made=numbers["decision"]["kind"] == "made")
    verified = float(verification["loss"]) if verification is not None else None
    return ScalingLaw(place, keys["runs"], keys.get("law"), keys.get("problem"), forecast, verified)


def _optional(options: Mapping[str, object]) -> list[str]:
    """The options that have a value."""
    return [part for flag, value in options.items() if value is not None for part in (flag, str(value))]


def _parsed(text: str) -> Any:
    """A value of TOML, if it is one of JSON as well; else its text."""
    try:
        return json.loads(text)
    except ValueError:
        return text
