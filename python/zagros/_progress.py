"""What is seen of a program while it runs: its lines on standard error, or a bar in a notebook."""

from __future__ import annotations

import re
import sys
import warnings
from typing import Any

#: How many steps there are.
_TOTAL = re.compile(r"^data: .* (\S+) in all$")
#: A step: its number, samples a second, loss.
_STEP = re.compile(r"^step (\S+) .*? (\S+) samples/s  loss (\S+)")
#: A score: of what, its step, its measures.
_SCORE = re.compile(r"^(\w+) after step (\S+): (.*?)( \(.*)?$")


class Lines:
    """Each line as it is."""

    def __call__(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    def finish(self) -> None:
        """Nothing is left to do."""

    def close(self) -> None:
        """Nothing is left to do."""


class Bar:
    """A bar of tqdm over the steps, with the newest loss and score. Warnings are shown as lines."""

    def __init__(self, tqdm: Any) -> None:
        self._tqdm = tqdm
        self._bar: Any = None
        self._total: int | None = None
        self._seen: dict[str, str] = {}

    def __call__(self, line: str) -> None:
        if total := _TOTAL.match(line):
            self._total = _number(total[1])
        elif step := _STEP.match(line):
            self._show(step[1], {"loss": f"loss {step[3]}", "speed": f"{step[2]} samples/s"})
        elif score := _SCORE.match(line):
            self._show(score[2], {score[1]: f"{score[1]} {score[3]}"})
        elif re.match(r"\s*(warning|error)\b", line):
            print(line, file=sys.stderr, flush=True)

    def _show(self, step: str, seen: dict[str, str]) -> None:
        if self._bar is None:
            self._bar = self._tqdm(total=self._total, unit="step")
        # After a score, the loss of a step before it says nothing.
        self._seen = seen if "loss" not in seen else {**self._seen, **seen}
        self._bar.set_postfix_str(", ".join(self._seen.values()), refresh=False)
        self._bar.n = max(self._bar.n, _number(step))
        self._bar.refresh()

    def finish(self) -> None:
        """Fills the bar: the program has done what it was to do."""
        if self._bar is not None and self._total is not None:
            self._bar.n = self._total
            self._bar.refresh()

    def close(self) -> None:
        """Ends the bar where it is."""
        if self._bar is not None:
            self._bar.close()


def _number(text: str) -> int:
    return int(text.replace(",", ""))


def reporter() -> Lines | Bar:
    """A bar in a notebook with tqdm; else lines."""
    if not _in_notebook():
        return Lines()
    try:
        with warnings.catch_warnings():
            # That widgets are not installed: the bar is then one of text.
            warnings.simplefilter("ignore")
            from tqdm.auto import tqdm
    except ImportError:
        return Lines()
    return Bar(tqdm)


def _in_notebook() -> bool:
    """Whether a kernel of Jupyter runs this process."""
    kernel = sys.modules.get("IPython")
    shell = kernel.get_ipython() if kernel is not None else None
    return type(shell).__name__ == "ZMQInteractiveShell"
