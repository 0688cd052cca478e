"""The program ``zagros`` as a child process of this one."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Union

from . import _progress
from ._job import absolute, to_json
from ._native import ZagrosError, job_toml

#: A job file, or its content.
JobSource = Union[Mapping[str, Any], str, "os.PathLike[str]"]
#: Gets each line that the program prints.
Progress = Callable[[str], None]
#: Lines of the program that an error shows.
_SHOWN = 60
#: Seconds that the program has to save its state after Ctrl-C.
_PATIENCE = 600.0


def find(given: str | os.PathLike[str] | None) -> str:
    """The program: the one that is given, or that of the PATH."""
    found = shutil.which(os.fspath(given) if given is not None else "zagros")
    if found is None:
        what = "zagros is not on the PATH" if given is None else f"{os.fspath(given)} is no program"
        raise ZagrosError(f"{what}; build it with `make build` and pass program=\"…/target/release/zagros\"")
    return found


def sets(overrides: Mapping[str, object] | None) -> list[str]:
    """``--set`` for each key."""
    return [part for key, value in (overrides or {}).items() for part in ("--set", f"{key}={_value(value)}")]


@contextmanager
def job_file(job: JobSource, *, resolved: bool) -> Iterator[pathlib.Path]:
    """The file of a job.

    Args:
        job: The file, or the content of one.
        resolved: Whether the text of content has every default. A search over sizes needs a job whose widths are open.

    Raises:
        ValueError: The content is wrong.
    """
    if not isinstance(job, Mapping):
        yield pathlib.Path(job)
        return
    # The folder is only for the text: what the program writes holds the resolved job.
    with tempfile.TemporaryDirectory(prefix="zagros-") as folder:
        path = pathlib.Path(folder) / f"{job.get('name', 'job')}.toml"
        keys = {"name": "job", **absolute(job)}
        text, _ = job_toml(to_json(keys), path.name)
        path.write_text(text if resolved else "".join(f"{_value(key)} = {_value(value)}\n" for key, value in keys.items()))
        yield path


def _value(value: Any) -> str:
    """A value as TOML. Of JSON, only tables are written otherwise, and there is no null."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_value(str(key))} = {_value(inner)}" for key, inner in value.items() if inner is not None) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_value, value)) + "]"
    return to_json(value)


def run(command: list[str], progress: Progress | None) -> list[str]:
    """Runs a command to its end.

    Ctrl-C is passed on, and the program may finish its step and save.

    Args:
        command: The program and its arguments.
        progress: Gets each line. Default: they go to this process's standard error, or fill a bar in a notebook.

    Returns:
        The lines that it printed, without colours.

    Raises:
        ZagrosError: It ended with an error, whose text it has.
    """
    own = _progress.reporter()
    report = progress or own
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
    lines: list[str] = []
    try:
        for line in child.stdout:
            lines.append(re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip())
            report(lines[-1])
        code = child.wait()
        if code == 0:
            own.finish()
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
        own.close()
    if code != 0:
        shown = "\n".join(deque(lines, maxlen=_SHOWN))
        raise ZagrosError(f"{' '.join(command[:3])} ended with exit code {code} (docs/exit-codes.md):\n{shown}")
    return lines


def named(lines: list[str], pattern: str, what: str) -> str:
    """What the last line that matches names."""
    found = [match[1] for line in lines if (match := re.search(pattern, line))]
    if not found:
        shown = "\n".join(lines[-_SHOWN:])
        raise ZagrosError(f"the program ended without naming {what}; is it of another release than this package?\n{shown}")
    return found[-1]
