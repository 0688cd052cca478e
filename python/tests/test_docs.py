"""The programs of the docs run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "pytorch.md"


@pytest.mark.skipif(not PAGE.exists(), reason="the docs are not beside the package")
def test_the_programs_of_the_page_run_one_after_the_other(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
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
