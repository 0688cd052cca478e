"""Jobs: the native trainer as a child."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import signal
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import PROGRAM, needs_program
from torch import nn

import zagros
from zagros._progress import Bar

pytestmark = needs_program


def test_a_job_from_a_dict_is_trained_and_its_run_is_data(job: dict[str, Any]) -> None:
    lines: list[str] = []
    run = zagros.train(job, {"train.epochs": 3}, program=PROGRAM, progress=lines.append)
    assert run.summary["outcome"] == "finished" and run.summary["steps"] == 90
    assert any(line.startswith("step ") for line in lines), lines
    assert run.summary["evaluation"]["auc"] > 0.9
    metrics = run.metrics
    assert (metrics["type"] == "step").sum() == 90 and metrics["loss"].dropna().iloc[-1] < 0.4
    model = run.model
    assert model.evaluation is not None and model.evaluation["auc"] == run.summary["evaluation"]["auc"]
    users = model.table("user")
    assert len(users.to_numpy().ids) == 20 and users.row("u3").shape == (4,)
    assert all(np.isfinite(array).all() for array in model.dense().values())
    assert zagros.open(run.folder).folder == model.folder


def test_errors_have_the_text_of_the_program(job: dict[str, Any], tmp_path: Path) -> None:
    job["data"]["train"] = "nowhere.csv"
    with pytest.raises(zagros.ZagrosError, match=r"(?s)exit code 3 .*nowhere.csv"):
        zagros.train(job, program=PROGRAM, progress=lambda line: None)
    with pytest.raises(ValueError, match="did you mean `epochs`"):
        zagros.train({**job, "train": {"epoch": 1}}, program=PROGRAM)
    with pytest.raises(zagros.ZagrosError, match=r"(?s)exit code 2 .*did you mean `epochs`"):
        path = tmp_path / "job.toml"
        path.write_text('[data]\nformat = "criteo"\ntrain = "a"\n[train]\nepoch = 1\n')
        zagros.train(path, program=PROGRAM, progress=lambda line: None)
    with pytest.raises(zagros.ZagrosError, match="is no program"):
        zagros.train(job, program="/nowhere/zagros")


def test_a_torchscript_network_trains_and_one_line_says_that_it_is_deprecated(job: dict[str, Any], tmp_path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(1 + 4, 1)

        def forward(self, numeric: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
            return self.layer(torch.cat([numeric, vectors], dim=1))

    file = tmp_path / "net.pt"
    with warnings.catch_warnings():
        # PyTorch says it too.
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.script(Net()).save(file)
    job["model"] = {"kind": "torchscript", "file": str(file), "sha256": hashlib.sha256(file.read_bytes()).hexdigest(), "trust": True}
    lines: list[str] = []
    run = zagros.train(job, program=PROGRAM, progress=lines.append)
    said = [line for line in lines if "deprecated" in line]
    assert len(said) == 1 and "net.pt" in said[0] and "zagros.EmbeddingBags" in said[0], lines
    assert run.summary["outcome"] == "finished"


def test_objects_are_tables_in_a_notebook(job: dict[str, Any]) -> None:
    run = zagros.train(job, {"train.epochs": 1}, program=PROGRAM, progress=lambda line: None)
    assert "<td style=\"text-align:left\">finished</td>" in run._repr_html_() and "evaluation auc" in run._repr_html_()
    assert ">user<" in run.model._repr_html_() and "weights, sum_of_squares" in run.model._repr_html_()
    shown = run.model.table("user")._repr_html_()
    assert shown.count("<tr>") == 6 and "dim 4, f32" in shown


def test_a_bar_is_filled_by_what_the_program_prints() -> None:
    tqdm = pytest.importorskip("tqdm")
    out = io.StringIO()
    bar = Bar(lambda **keys: tqdm.tqdm(file=out, **keys))
    for line in (
        "data: 3,000 rows (counted), 300 steps an epoch, 1,200 in all",
        "step 1,000  epoch 4/4  33 %  8,105 samples/s  loss 0.7141  AUC so far 0.4992  staleness 0",
        "test after step 1,100: AUC 0.6601, logloss 0.6148 (20,000 samples)",
        "what else it says",
    ):
        bar(line)
    assert "1000/1200" in out.getvalue() and "loss 0.7141, 8,105 samples/s" in out.getvalue()
    assert "1100/1200" in out.getvalue() and "test AUC 0.6601, logloss 0.6148" in out.getvalue()
    bar.finish()
    bar.close()
    assert "1200/1200" in out.getvalue() and "what else" not in out.getvalue()


def children() -> list[int]:
    """The trainers that this process has started."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        # Processes end meanwhile.
        with contextlib.suppress(OSError):
            name, rest = path.read_text().rsplit(")", 1)
            if name.endswith("(zagros") and int(rest.split()[1]) == os.getpid():
                found.append(int(path.parent.name))
    return found


def test_ctrl_c_lets_the_program_save(job: dict[str, Any]) -> None:
    job["train"]["epochs"] = 10_000
    pids: list[int] = []

    def started(line: str) -> None:
        if line.startswith("step ") and not pids:
            pids.extend(children())
            threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()

    with pytest.raises(KeyboardInterrupt):
        zagros.train(job, program=PROGRAM, progress=started)
    assert len(pids) == 1 and not Path(f"/proc/{pids[0]}").exists()
    # It has finished its step and saved.
    runs = list(Path("runs").iterdir())
    assert len(runs) == 1 and list((runs[0] / "checkpoints").glob("*/manifest.json"))
