"""Several ranks of ``torch.distributed`` with one embedding layer: they equal one rank, and end together."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import rank_program
import torch
from rank_program import FEATURES, OPTIMIZERS
from test_faults import LONG, are_gone, stop

import zagros
from zagros._job import job_of
from zagros._servers import LocalServers

ENDLESS = [0, 10**9]


# A process that has imported torch forks each rank: the import takes longer than most runs.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["rank_program"])


class Ranks:
    """The processes of one run; what they say is in files."""

    def __init__(self, folder: Path, size: int, options: dict[str, Any]) -> None:
        folder.mkdir()
        self.folder, self.servers = folder, {}
        self.processes = [FORKS.Process(target=rank_program.start, args=(rank, size, folder, options)) for rank in range(size)]
        for process in self.processes:
            process.start()

    def said(self, rank: int, where: str = "err") -> str:
        file = self.folder / f"{rank}.{where}"
        return file.read_text() if file.exists() else ""

    def wait_for_step(self, step: int) -> None:
        deadline = time.monotonic() + 60
        while f"step {step}\n" not in self.said(0, "out"):
            assert self.processes[0].is_alive() and time.monotonic() < deadline, self.said(0)
            time.sleep(0.01)
        self.servers = json.loads(self.said(0, "out").split("servers ", 1)[1].splitlines()[0])

    def finish(self) -> None:
        for rank, process in enumerate(self.processes):
            process.join(60)
            assert process.exitcode == 0, self.said(rank)

    def end_of(self, rank: int, within: float = LONG) -> str:
        """What a rank says that fails in time."""
        self.processes[rank].join(within)
        said = self.said(rank)
        assert self.processes[rank].exitcode == 1, said
        # What follows the last traceback.
        return said.rsplit("ZagrosError:", 1)[-1]

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Any]:
    """Starts programs, and ends what is left of them."""
    made: list[Ranks] = []

    def start(size: int, **options: Any) -> Ranks:
        made.append(Ranks(tmp_path / f"run-{len(made)}", size, options))
        return made[-1]

    yield start
    for run in made:
        run.kill()


def trained(start: Any, size: int, dump: Path, **options: Any) -> Any:
    """What a program leaves that comes to its end: rows, dense weights, counts."""
    run = start(size, dump=str(dump), **options)
    run.finish()
    return torch.load(dump)


def difference(one: Any, other: Any) -> float:
    """The largest one of a weight, in rows and in the dense network."""
    pairs = [(one[part][name], other[part][name]) for part in ("rows", "dense") for name in one[part]]
    return max(float((a - b).abs().max()) for a, b in pairs)


CASES: dict[str, dict[str, Any]] = {
    "adagrad": {"steps": [0, 50]},
    "sgd": {"optimizer": "sgd", "steps": [0, 25]},
    "ahead": {"ahead": True},
    "inside": {"inside": True},
    "accumulated": {"push_at": "step", "parts": 2},
    "overflow": {"scaler": True, "overflow_at": 5},
}


@pytest.mark.parametrize("options", CASES.values(), ids=CASES.keys())
def test_two_ranks_equal_one_with_the_same_global_batch(ranks: Any, tmp_path: Path, options: dict[str, Any]) -> None:
    one = trained(ranks, 1, tmp_path / "one.pt", **options)
    two = trained(ranks, 2, tmp_path / "two.pt", **options)
    print(f"largest difference of a weight: {difference(one, two)}")
    assert difference(one, two) < 1e-6
    assert one["counts"] == two["counts"] and one["counts"]["dropped"] == ("overflow_at" in options)
    assert difference(one, {"rows": {name: 0 * rows for name, rows in one["rows"].items()}, "dense": one["dense"]}) > 0.05


def test_ranks_join_a_run_that_was_started_elsewhere(ranks: Any, tmp_path: Path) -> None:
    one = trained(ranks, 1, tmp_path / "one.pt")
    settings = {"optimizer": OPTIMIZERS["adagrad"], "init": zagros.Uniform(0.1), "staleness": 0, "seed": 1, "timeout": 20.0}
    job, _ = job_of(FEATURES, servers=2, workers=2, settings={}, **settings)
    servers = LocalServers(job, 2, (), 20.0)
    try:
        run = ranks(2, servers=servers.coordinator, secret=servers.secret, settings={"cluster.servers": 2}, dump=str(tmp_path / "two.pt"))
        run.finish()
        assert difference(one, torch.load(tmp_path / "two.pt")) < 1e-6
        # The run has ended well once both have left, and so do its processes.
        assert are_gone(list(servers.pids().values())) and all(child.wait() == 0 for child in servers._children.values())
    finally:
        servers.stop()


def test_stale_ranks_push_independently_and_every_gradient_once(ranks: Any, tmp_path: Path) -> None:
    two = trained(ranks, 2, tmp_path / "two.pt", staleness=4, ahead=True, steps=[0, 30])
    assert two["counts"]["steps"] == 30
    assert torch.isfinite(two["rows"]["user"]).all() and two["counts"]["rows"] == {"user": 40, "tags": 8}


def test_a_rank_that_is_killed_is_named_and_the_newest_save_goes_on_bit_by_bit(ranks: Any, tmp_path: Path) -> None:
    save = {"save_at": 6, "save": str(tmp_path / "save")}
    whole = trained(ranks, 2, tmp_path / "whole.pt", steps=[0, 12], save_at=6, save=str(tmp_path / "other"))
    broken = ranks(2, steps=ENDLESS, **save)
    broken.wait_for_step(9)
    broken.processes[1].kill()
    started = time.monotonic()
    said = broken.end_of(0)
    assert f"rank 1 (process {broken.processes[1].pid}) has ended" in said and "load the newest save" in said, said
    assert time.monotonic() - started < LONG and are_gone(list(broken.servers.values()))
    for size in (2, 1):
        resumed = trained(ranks, size, tmp_path / f"resumed-{size}.pt", steps=[6, 12], load=str(tmp_path / "save"))
        assert difference(whole, resumed) <= (0.0 if size == 2 else 1e-6)
    assert json.loads((tmp_path / "save" / "manifest.json").read_text())["samples"] == 6 * 32


@pytest.mark.parametrize("staleness", [0, 2])
def test_a_server_that_is_killed_is_named_on_every_rank(ranks: Any, staleness: int) -> None:
    run = ranks(2, steps=ENDLESS, staleness=staleness)
    run.wait_for_step(3)
    os.kill(run.servers["embedding-server-1"], signal.SIGKILL)
    for rank in (0, 1):
        said = run.end_of(rank)
        assert "embedding-server-1" in said and "was killed by signal 9" in said and "load the newest save" in said, said


def test_the_end_of_rank_0_ends_the_servers_and_the_other_rank(ranks: Any) -> None:
    run = ranks(2, steps=ENDLESS, staleness=2)
    run.wait_for_step(3)
    run.processes[0].kill()
    said = run.end_of(1)
    assert f"rank 0 (process {run.processes[0].pid}) has ended" in said, said
    assert are_gone(list(run.servers.values()), within=LONG)


def test_a_rank_that_fails_is_what_the_others_say(ranks: Any) -> None:
    run = ranks(2, steps=ENDLESS, fail_at=4)
    said = run.end_of(0)
    assert "dense worker 1: ValueError: its data are wrong" in said.splitlines()[0], said


def test_a_rank_that_is_stopped_is_an_error_in_time(ranks: Any) -> None:
    run = ranks(2, steps=ENDLESS, timeout=8.0, settings={"cluster.lease_seconds": 3.0})
    run.wait_for_step(3)
    stop(run.processes[1].pid)
    # Its lease, and then the time-out for another process in its place.
    said = run.end_of(0, within=90)
    assert "dense worker 1 is lost" in said, said
