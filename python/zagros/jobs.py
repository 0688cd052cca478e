"""Jobs: the native trainer as a child process of this one."""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Mapping
from typing import IO, TYPE_CHECKING, Any

from ._job import absolute
from ._native import ZagrosError, job_toml
from .models import Model, open_model

if TYPE_CHECKING:
    import pandas

#: Lines of the program that an error shows.
_SHOWN = 60
#: Seconds that the program has to save its state after Ctrl-C.
_PATIENCE = 600.0


class Run:
    """A run of the trainer.

    Attributes:
        folder: Its folder.
        summary: What ``summary.json`` says, such as ``summary["evaluation"]["auc"]``.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = pathlib.Path(folder)
        self.summary: dict[str, Any] = json.loads((self.folder / "summary.json").read_text())

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r}, {self.summary.get('outcome')}, {self.summary.get('steps')} steps)"

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
    job: Mapping[str, Any] | str | os.PathLike[str],
    overrides: Mapping[str, object] | None = None,
    *,
    program: str | os.PathLike[str] | None = None,
    progress: Callable[[str], None] | None = None,
) -> Run:
    """Trains a job with the program ``zagros``, and waits for its end.

    Ctrl-C lets the program finish its step and save a checkpoint; the same call then resumes.

    Args:
        job: A job file, or its content as a dict. Paths in a dict start at the current directory.
        overrides: Keys with dots: ``{"train.epochs": 2}``.
        program: The program. Default: ``zagros`` on the PATH.
        progress: Gets each line that the program prints meanwhile. Default: they go to this process's standard error.

    Returns:
        The finished run.

    Raises:
        ZagrosError: The program ended with an error, whose text it has.
        ValueError: The job is wrong.
    """
    program = _program(program)
    if isinstance(job, Mapping):
        # The folder is only for the text: the run folder holds the resolved job.
        with tempfile.TemporaryDirectory(prefix="zagros-") as folder:
            path = pathlib.Path(folder) / f"{job.get('name', 'job')}.toml"
            text, _ = job_toml(json.dumps(absolute(job)), path.name)
            path.write_text(text)
            return _train(program, path, overrides or {}, progress)
    return _train(program, pathlib.Path(job), overrides or {}, progress)


def _train(program: str, job: pathlib.Path, overrides: Mapping[str, object], progress: Callable[[str], None] | None) -> Run:
    command = [program, "train", str(job), "--exit-with-parent"]
    for key, value in overrides.items():
        command += ["--set", f"{key}={json.dumps(value)}"]
    report = progress or (lambda line: print(line, file=sys.stderr, flush=True))
    # A session of its own: this process decides what Ctrl-C means.
    child = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    assert child.stdout is not None and child.stdin is not None
    lines: deque[str] = deque(maxlen=_SHOWN)
    try:
        folder = _follow(child.stdout, lines, report)
        code = child.wait()
    except BaseException:
        # SIGINT: it finishes its step and saves.
        child.send_signal(2)
        try:
            # Read on: a full pipe would hold it up.
            child.communicate(timeout=_PATIENCE)
        except BaseException:
            child.kill()
            child.wait()
        raise
    finally:
        for pipe in (child.stdin, child.stdout):
            pipe.close()
    if code != 0 or folder is None:
        shown = "\n".join(lines)
        raise ZagrosError(f"{program} train {job} ended with exit code {code} (docs/exit-codes.md):\n{shown}")
    return Run(folder)


def _follow(output: IO[str], lines: deque[str], report: Callable[[str], None]) -> str | None:
    """Passes lines on until the end; the run's folder, once the program names it."""
    folder = None
    for line in output:
        text = re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip()
        named = re.match(r"\s*run folder\s+(\S.*)", text)
        folder = named[1] if named else folder
        lines.append(text)
        report(text)
    return folder


def _program(given: str | os.PathLike[str] | None) -> str:
    found = shutil.which(os.fspath(given) if given is not None else "zagros")
    if found is None:
        what = "zagros is not on the PATH" if given is None else f"{os.fspath(given)} is no program"
        raise ZagrosError(f"{what}; build it with `make build` and pass program=\"…/target/release/zagros\"")
    return found
