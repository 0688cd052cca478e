"""The programs of the docs run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import PROGRAM, needs_program

import zagros

PAGES = Path(__file__).resolve().parents[2] / "docs" / "how-to"
pytestmark = pytest.mark.skipif(not PAGES.exists(), reason="the docs are not beside the package")


def blocks_of(page: str) -> list[str]:
    """The programs of a page."""
    return re.findall(r"```python\n(.*?)```", (PAGES / page).read_text(), re.DOTALL)


def test_the_loops_of_the_page_on_pytorch_run(tmp_path: Path) -> None:
    blocks = blocks_of("pytorch.md")
    assert len(blocks) == 2
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", "\n".join(blocks)],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )
    assert done.returncode == 0, done.stderr
    losses = [float(line.rsplit(" ", 1)[1]) for line in done.stdout.splitlines()]
    assert len(losses) == 5 and losses[-1] < 0.5 * losses[0], done.stdout
    assert (tmp_path / "model" / "manifest.json").is_file()


def test_the_import_needs_neither_torch_nor_numpy() -> None:
    script = "import sys, zagros; print([name for name in ('torch', 'numpy', 'pandas') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


@needs_program
def test_the_benchmark_runs() -> None:
    script = PAGES.parents[1] / "scripts" / "bench_python.py"
    done = subprocess.run([sys.executable, script, "--quick"], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    table = [line.split() for line in done.stdout.splitlines()[-4:]]
    assert [line[0] for line in table] == ["network", "zagros", "torch", "native"] and all(len(line) == 4 for line in table)


@needs_program
def test_the_programs_of_the_page_on_models_run(job: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    blocks = blocks_of("models-in-python.md")
    assert len(blocks) == 8
    names: dict[str, Any] = {"PROGRAM": PROGRAM}
    for block in blocks:
        exec(block, names)
    assert names["run"].summary["outcome"] == "finished" and len(names["steps"]) == 90
    assert names["frame"].shape == (20, 4) and len(names["ids"]) == 5
    known = {zagros.id_of(f"u{index}") for index in range(20)}
    assert names["found"].shape == (1, 5) and set(names["found"][0].tolist()) <= known
    assert names["imported"].rows == 1000 and Path("user.parquet").exists() and Path("dense.safetensors").exists()
    assert names["tensors"]["ids"]["user"].dtype is torch.int64
    assert list(names["scores"].to_pandas().columns) == ["user", "score"] and names["scores"].rows == 1000
    assert len(names["trials"]) == 4 and names["best"].summary["outcome"] == "finished"
    assert names["chances"].shape == (100, 1) and names["chances"].std() > 0.01
