"""The notebook of the examples is executed, as a user would who opens it."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from conftest import PROGRAM, needs_program
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / "examples" / "notebook.ipynb"
PAGE = ROOT / "docs" / "how-to" / "notebook.md"
pytestmark = pytest.mark.skipif(not NOTEBOOK.exists(), reason="the examples are not beside the package")
#: Seconds for a cell.
LIMIT = 100


@needs_program
def test_every_cell_runs_and_shows_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{PROGRAM.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("MPLCONFIGDIR", str(tmp_path / "matplotlib"))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    client = NotebookClient(notebook, timeout=LIMIT, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    shown: list[Any] = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    if keep := os.environ.get("KEEP_NOTEBOOK"):
        nbformat.write(notebook, keep)
    pages = [output["data"]["text/html"] for output in shown if "text/html" in output.get("data", {})]
    # Test rows, the run, the model, the neighbours.
    assert len(pages) == 4, pages
    run = pages[1]
    auc = re.search(r"evaluation auc</td><td[^>]*>([\d.]+)", run)
    assert auc is not None and float(auc[1]) > 0.84, run
    assert "film" in pages[2] and "sum_of_squares" in pages[2]
    assert sum("image/png" in output.get("data", {}) for output in shown) == 3
    text = "".join(output.get("text", "") for output in shown if output.output_type == "stream" and output.name == "stdout")
    difference = re.search(r"the largest difference is (\S+)", text)
    assert difference is not None and float(difference[1]) < 1e-6, text
    # A bar, not a line for each report of the trainer.
    progress = "".join(output.get("text", "") for output in shown if output.output_type == "stream" and output.name == "stderr")
    assert "960/960" in progress and re.search(r"test AUC 0\.8\d+", progress) and "samples/s  loss" not in progress, progress


def test_it_is_stored_without_outputs() -> None:
    for cell in nbformat.read(NOTEBOOK, as_version=4).cells:
        assert cell.cell_type != "code" or (cell.outputs == [] and cell.execution_count is None)


def test_the_page_shows_the_notebook() -> None:
    """``UPDATE_DOCS=1`` writes the page anew."""
    parts = []
    for cell in nbformat.read(NOTEBOOK, as_version=4).cells:
        parts.append(cell.source if cell.cell_type == "markdown" else f"```python\n{cell.source}\n```")
    first = "This is [examples/notebook.ipynb](../../examples/notebook.ipynb), which the tests execute.\n\n"
    text = parts[0].replace("\n\n", f"\n\n{first}", 1) + "\n\n" + "\n\n".join(parts[1:]) + "\n"
    # The notebook is in another folder.
    text = text.replace("](../docs/how-to/", "](").replace("](../docs/", "](../")
    for after, image in IMAGES.items():
        assert after in text
        text = text.replace(after, f"{after}\n\n![{image[0]}](../images/{image[1]})")
    if os.environ.get("UPDATE_DOCS") == "1":
        PAGE.write_text(text)
    assert PAGE.read_text() == text, "UPDATE_DOCS=1 writes the page anew"


#: Images of the page, after the code that draws them.
IMAGES = {
    'right.set(title="AUC of the test rows", xlabel="step")\nfigure.tight_layout()\n```': ("Loss and AUC by step", "notebook-curves.png"),
    "axes.legend(frameon=False, fontsize=8)\nfigure.tight_layout()\n```": ("Rows of films in a plane, by genre", "notebook-films.png"),
}
