"""What the tests share: a timeout for each, layers whose servers end with their test, a small job."""

from __future__ import annotations

import faulthandler
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import zagros

# A shell starts what it runs in the background with SIGINT ignored, and children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

#: Seconds after which a test that hangs ends the whole run with the stacks of its threads.
HANGS = 120
PROGRAM = Path(os.environ.get("ZAGROS_PROGRAM", Path(__file__).resolve().parents[2] / "target" / "release" / "zagros"))
needs_program = pytest.mark.skipif(
    not PROGRAM.exists() and os.environ.get("CI") != "true", reason=f"{PROGRAM} is not built (make build)"
)


@pytest.fixture(autouse=True)
def no_hang() -> Iterator[None]:
    """Ends a test that waits for ever."""
    faulthandler.dump_traceback_later(HANGS, exit=True)
    torch.manual_seed(1)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture
def layers() -> Iterator[Callable[..., zagros.EmbeddingBags]]:
    """Makes layers, and closes them."""
    made: list[zagros.EmbeddingBags] = []

    def make(features: dict[str, Any] | None = None, **settings: Any) -> zagros.EmbeddingBags:
        settings.setdefault("servers", "local:2")
        settings.setdefault("staleness", 0)
        settings.setdefault("timeout", 20.0)
        settings.setdefault("optimizer", zagros.SGD(lr=1.0))
        settings.setdefault("init", zagros.Zero())
        layer = zagros.EmbeddingBags(features or {"C1": 2}, **settings)
        made.append(layer)
        return layer

    yield make
    for layer in made:
        try:
            layer.close()
        except zagros.ZagrosError:
            # A test that breaks a layer has seen the error.
            pass


def is_idle(layer: zagros.EmbeddingBags) -> bool:
    """Whether the window is empty, or is soon: a lookup that is given up ends in the background."""
    deadline = time.monotonic() + 10.0
    while layer._session.in_flight() != (0, 0) and time.monotonic() < deadline:
        time.sleep(0.01)
    return layer._session.in_flight() == (0, 0)


def read(layer: zagros.EmbeddingBags, ids: list[int], feature: str = "C1") -> torch.Tensor:
    """The rows of a layer with one feature, as they are."""
    layer.flush()
    with torch.no_grad():
        return layer({feature: torch.tensor(ids)})[feature]


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A job on rows whose click depends on a user and a number."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    chance = random.Random(1)
    lines = ["click,user,age"]
    for _ in range(4000):
        user, age = chance.randrange(20), chance.random()
        lines.append(f"{int(user % 2 == 0 and age > 0.3)},u{user},{age:.3f}")
    for name, part in (("train.csv", lines[:3001]), ("test.csv", [lines[0], *lines[3001:]])):
        (tmp_path / name).write_text("\n".join(part) + "\n")
    return {
        "name": "clicks",
        "data": {"format": "delimited", "train": "train.csv", "test": ["test.csv"]},
        "features": {"label": "click", "numeric": ["age"], "categorical": ["user"]},
        "embedding": {"dim": 4, "optimizer": {"kind": "adagrad", "lr": 0.2}},
        "model": {"kind": "ffnn", "hidden": [8]},
        "optimizer": {"kind": "adam", "lr": 0.01},
        "train": {"batch_size": 100, "epochs": 4},
        "cluster": {"durability": "checkpoint"},
    }
