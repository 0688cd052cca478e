"""What the tests share: a timeout for each, and layers whose servers end with their test."""

from __future__ import annotations

import faulthandler
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import zagros

#: Seconds after which a test that hangs ends the whole run with the stacks of its threads.
HANGS = 120


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


def read(layer: zagros.EmbeddingBags, ids: list[int], feature: str = "C1") -> torch.Tensor:
    """The rows of a layer with one feature, as they are."""
    layer.flush()
    with torch.no_grad():
        return layer({feature: torch.tensor(ids)})[feature]
