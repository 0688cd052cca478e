"""Jobs: the native trainer as a child."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import PROGRAM, needs_program

import zagros

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
