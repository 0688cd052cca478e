"""Predictions, sweeps and scaling laws: the program as a child."""

from __future__ import annotations

import os
import random
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from conftest import PROGRAM, needs_program

import zagros

pytestmark = needs_program


def quiet(line: str) -> None:
    """Says nothing."""


@pytest.fixture
def run(job: dict[str, Any]) -> zagros.Run:
    """A trained job."""
    return zagros.train(job, program=PROGRAM, progress=quiet)


def test_predictions_are_those_of_the_model_in_every_form(run: zagros.Run, tmp_path: Path) -> None:
    made = zagros.predict(run, "test.csv", program=PROGRAM, progress=quiet)
    assert (made.rows, made.malformed) == (1000, 0) and made.file.exists()
    scores = made.to_numpy()
    assert scores.shape == (1000,) and ((scores > 0) & (scores < 1)).all()
    # The area under the curve is that of the run's evaluation.
    clicks = pandas.read_csv("test.csv")["click"].to_numpy() == 1
    better = (scores[clicks][:, None] > scores[~clicks]).mean() + (scores[clicks][:, None] == scores[~clicks]).mean() / 2
    assert abs(better - run.summary["evaluation"]["auc"]) < 1e-6
    for ending in ("csv", "jsonl", "parquet"):
        file = zagros.predict(
            [run.model], ["test.csv", tmp_path / "test.csv"], f"s.{ending}", keys=["user"], logits=True, program=PROGRAM, progress=quiet
        )
        frame = file.to_pandas()
        assert list(frame.columns) == ["user", "score"] and file.file == Path(f"s.{ending}") and file.rows == len(frame) == 2000
        assert frame["user"].tolist() == pandas.read_csv("test.csv")["user"].tolist() * 2
        assert np.allclose(1 / (1 + np.exp(-file.to_numpy()[1000:])), scores, atol=1e-6)
    place = made.file
    del made
    assert not place.exists()


def test_scores_of_several_models_are_averaged(job: dict[str, Any], run: zagros.Run) -> None:
    other = zagros.train(job, {"train.seed": 2}, program=PROGRAM, progress=quiet)
    one, two, both = (
        zagros.predict(models, "test.csv", program=PROGRAM, progress=quiet).to_numpy()
        for models in (run, other.folder, [run, other.model])
    )
    assert np.allclose(both, (one + two) / 2, atol=1e-6) and not np.allclose(one, two, atol=1e-3)


def test_wrong_predictions_have_the_text_of_the_program(run: zagros.Run, tmp_path: Path) -> None:
    with pytest.raises(zagros.ZagrosError, match=r"(?s)exit code 3 .*nowhere.csv"):
        zagros.predict(run, "nowhere.csv", program=PROGRAM, progress=quiet)
    with pytest.raises(ValueError, match="its ending is .csv, .jsonl or .parquet"):
        zagros.predict(run, "test.csv", "scores.xls", program=PROGRAM)
    with pytest.raises(ValueError, match="there is nothing to score"):
        zagros.predict(run, [], program=PROGRAM)
    (tmp_path / "bad.csv").write_text("user,age\nu1,0.5\nu2,old\n")
    with pytest.raises(zagros.ZagrosError, match=r"bad.csv:3"):
        zagros.predict(run, "bad.csv", program=PROGRAM, progress=quiet)
    skipped = zagros.predict(run, "bad.csv", bad_rows="empty", program=PROGRAM, progress=quiet)
    assert (skipped.rows, skipped.malformed) == (2, 1) and np.isnan(skipped.to_numpy()).tolist() == [False, True]


@pytest.fixture
def searched(job: dict[str, Any]) -> dict[str, Any]:
    """A job that a sweep can compare trials of."""
    job["data"]["validation_share"] = 0.2
    return job


def test_a_sweep_finds_the_best_trial_and_goes_on(searched: dict[str, Any]) -> None:
    space: dict[str, Any] = {"optimizer.lr": [0.01, 1e-6], "model.hidden": [[8], [4, 4]]}
    made = zagros.sweep(searched, space, {"train.epochs": 2}, save_models=True, program=PROGRAM, progress=quiet)
    assert len(made.trials) == 4 and made.metric == "auc" and made.best is not None
    assert made.best is made.trials[0] and all(trial.auc is not None and 40 < trial.steps < 56 for trial in made.trials)
    assert sorted(str(trial.values) for trial in made.trials) == sorted(
        str({"optimizer.lr": lr, "model.hidden": hidden}) for lr in (0.01, 1e-6) for hidden in ([8], [4, 4])
    )
    aucs = [trial.auc or 0.0 for trial in made.trials]
    assert aucs == sorted(aucs, reverse=True) and made.best.failed is None
    frame = made.to_pandas()
    assert len(frame) == 4 and frame["auc"].tolist() == aucs and {"trial", "optimizer.lr", "model.hidden"} < set(frame.columns)
    assert len(made.best.run.model.table("user").to_numpy().ids) == 20
    assert zagros.train(made.best_job, program=PROGRAM, progress=quiet).summary["outcome"] == "finished"
    # The same call trains nothing again.
    lines: list[str] = []
    again = zagros.sweep(searched, space, {"train.epochs": 2}, save_models=True, program=PROGRAM, progress=lines.append)
    assert again.trials == made.trials and not any(line.startswith("trial 0:") for line in lines), lines


def test_values_by_chance_are_in_their_range(searched: dict[str, Any]) -> None:
    space: dict[str, Any] = {"embedding.optimizer.lr": zagros.Range(1e-3, 1e-1, log=True), "embedding.dim": zagros.Range(2, 5)}
    made = zagros.sweep(
        searched, space, {"train.epochs": 1}, search="random", trials=5, seed=3, metric="logloss", folder="by-chance", program=PROGRAM, progress=quiet
    )
    assert made.folder == Path("by-chance") and len(made.trials) == 5
    assert all(1e-3 <= trial.values["embedding.optimizer.lr"] <= 1e-1 and trial.values["embedding.dim"] in range(2, 6) for trial in made.trials)
    assert made.best is not None and made.best.logloss == min(trial.logloss or 9 for trial in made.trials)


def test_wrong_sweeps_are_refused(job: dict[str, Any], searched: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="nothing is searched"):
        zagros.sweep(searched, {}, program=PROGRAM)
    with pytest.raises(zagros.ZagrosError, match=r"(?s)exit code 2 .*embedding.dims"):
        zagros.sweep(searched, {"embedding.dims": [2, 3]}, program=PROGRAM, progress=quiet)
    with pytest.raises(ValueError, match="did you mean `epochs`"):
        zagros.sweep({**searched, "train": {"epoch": 1}}, {"embedding.dim": [2, 3]}, program=PROGRAM)
    del job["data"]["validation_share"]
    with pytest.raises(zagros.ZagrosError, match=r"(?s)exit code 2 .*validation"):
        zagros.sweep(job, {"embedding.dim": [2, 3]}, program=PROGRAM, progress=quiet)


def test_ctrl_c_ends_a_sweep_and_the_same_call_goes_on(searched: dict[str, Any]) -> None:
    lines: list[str] = []

    def search(progress: Any) -> zagros.Sweep:
        return zagros.sweep(searched, {"train.seed": [1, 2, 3, 4, 5, 6]}, {"train.epochs": 40}, jobs=1, program=PROGRAM, progress=progress)

    def stop_after_the_first(line: str) -> None:
        if line.startswith("trial 0:"):
            threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()

    with pytest.raises(KeyboardInterrupt):
        search(stop_after_the_first)
    found = search(lines.append)
    assert len(found.trials) == 6 and not any(line.startswith("trial 0:") for line in lines), lines


def test_a_law_of_sizes_is_fitted_and_its_forecast_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    chance = random.Random(1)
    lines = ["click,user,x,y"]
    for _ in range(6000):
        user, x, y = chance.randrange(40), chance.random(), chance.random()
        lines.append(f"{int(chance.random() < 0.5 + 0.45 * np.sin(9 * x + user) * np.cos(7 * y))},u{user},{x:.4f},{y:.4f}")
    for name, part in (("train.csv", lines[:5001]), ("test.csv", [lines[0], *lines[5001:]])):
        (tmp_path / name).write_text("\n".join(part) + "\n")
    job: dict[str, Any] = {
        "name": "sizes",
        "data": {"format": "delimited", "train": "train.csv", "test": "test.csv"},
        "features": {"label": "click", "numeric": [{"column": "x", "standardise": True}, "y"], "categorical": ["user"]},
        "embedding": {"dim": 4, "optimizer": {"kind": "adagrad", "lr": 0.05}},
        "model": {"kind": "ffnn"},
        "train": {"batch_size": 64},
    }
    options: dict[str, Any] = {"sizes": [250, "560", "1.25k"], "next_size": "2.8k", "seeds": 1, "data": [1], "verify": True}
    law = zagros.scaling_law(job, {"optimizer.lr": 0.005}, **options, program=PROGRAM, progress=quiet)
    assert law.folder == Path("runs/sizes-scaling") and (law.folder / "report.html").is_file()
    assert sorted(run["size"] for run in law.runs) == ["1.25k", "250", "560"] and len(law.to_pandas()) == 3
    assert law.law is not None and law.problem is None and law.law["terms"]
    assert law.forecast is not None and law.forecast.size == "2.8k" and law.forecast.low <= law.forecast.loss <= law.forecast.high
    assert law.forecast.last == next(run["loss"] for run in law.runs if run["size"] == "1.25k")
    assert law.verified is None or 0.3 < law.verified < 0.8
    again = zagros.scaling_law(job, {"optimizer.lr": 0.005}, **options, program=PROGRAM, progress=quiet)
    assert again == law
    with pytest.raises(zagros.ZagrosError, match=r"(?s)exit code 2 .*hidden"):
        zagros.scaling_law({**job, "model": {"kind": "ffnn", "hidden": [8]}}, folder="other", program=PROGRAM, progress=quiet)

