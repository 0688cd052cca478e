"""Processes that die, are forked, interrupted or ended: an error in time, and no push twice."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from conftest import read

import zagros

Layers = Callable[..., zagros.EmbeddingBags]
#: No wait of these tests may take this long, in seconds.
LONG = 30.0


_STARTED: list[subprocess.Popen[str]] = []


def run(script: str, *more: str) -> subprocess.Popen[str]:
    """A program of its own."""
    command = [sys.executable, "-c", textwrap.dedent(script), *more]
    program = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    _STARTED.append(program)
    return program


@pytest.fixture(autouse=True)
def no_program_left() -> Iterator[None]:
    """Kills what a test that failed has started."""
    yield
    while _STARTED:
        _STARTED.pop().kill()


def are_gone(pids: list[int], within: float = 10.0) -> bool:
    """Whether all of these processes end in time."""
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        if not any(is_alive(pid) for pid in pids):
            return True
        time.sleep(0.05)
    return False


def stop(pid: int) -> None:
    """Stops a process, and waits until it is."""
    os.kill(pid, signal.SIGSTOP)
    while any(task.read_text().rsplit(")", 1)[1].split()[0] != "T" for task in Path(f"/proc/{pid}/task").glob("*/stat")):
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_a_server_that_is_killed_before_backward_is_named(layers: Layers) -> None:
    layer = layers(staleness=1)
    loss = layer({"C1": torch.arange(50)})["C1"].sum()
    assert layer._servers is not None
    pid = layer._servers.pids()["embedding-server-1"]
    os.kill(pid, signal.SIGKILL)
    started = time.monotonic()
    with pytest.raises(zagros.ZagrosError, match=rf"embedding-server-1 \(process {pid}\) was killed by signal 9"):
        loss.backward()
        layer.flush()
    with pytest.raises(zagros.ZagrosError, match="load the newest save"):
        layer({"C1": torch.arange(50)})
        layer({"C1": torch.arange(50)})
    assert time.monotonic() - started < LONG


def test_the_run_ends_when_a_server_is_killed_also_while_no_call_waits_for_it(layers: Layers) -> None:
    layer = layers(timeout=20.0)
    assert layer._servers is not None
    os.kill(layer._servers.pids()["embedding-server-1"], signal.SIGKILL)
    started = time.monotonic()
    with pytest.raises(zagros.ZagrosError, match="embedding-server-1 .* was killed by signal 9"):
        # What each rank asks during a wait for a collective.
        while time.monotonic() < started + LONG:
            layer._session.check()
            time.sleep(0.01)


def test_after_a_killed_server_the_newest_save_goes_on_bit_by_bit(layers: Layers, tmp_path: Path) -> None:
    settings = {"optimizer": zagros.Adagrad(lr=0.1), "init": zagros.Normal(0.1)}

    def train(layer: zagros.EmbeddingBags, steps: range) -> None:
        for step in steps:
            ids = torch.randint(0, 50, (16,), generator=torch.Generator().manual_seed(step))
            layer({"C1": ids})["C1"].pow(2).sum().backward()

    whole, broken = layers(**settings), layers(**settings)
    train(whole, range(20))
    train(broken, range(10))
    broken.save(tmp_path / "save")
    train(broken, range(10, 13))
    assert broken._servers is not None
    os.kill(broken._servers.pids()["embedding-server-0"], signal.SIGKILL)
    with pytest.raises(zagros.ZagrosError, match="embedding-server-0 .* was killed by signal 9.*load the newest save"):
        train(broken, range(13, 20))
    # Pushes that the other server may have taken are in no save, so none is made twice.
    resumed = layers(**settings, servers="local:3")
    resumed.load(tmp_path / "save")
    train(resumed, range(10, 20))
    rows = [read(layer, list(range(50))) for layer in (whole, resumed)]
    assert torch.equal(*rows) and (resumed.steps, resumed.samples) == (20, 320)


def test_a_server_that_is_stopped_is_an_error_at_the_deadline(layers: Layers) -> None:
    layer = layers(servers="local:1", timeout=1.0)
    loss = layer({"C1": torch.tensor([1])})["C1"].sum()
    assert layer._servers is not None
    pid = layer._servers.pids()["embedding-server-0"]
    stop(pid)
    try:
        loss.backward()
        with pytest.raises(zagros.ZagrosError, match="could not push gradients to embedding server 0"):
            layer.flush()
        with pytest.raises(zagros.ZagrosError, match="an earlier push failed"):
            layer({"C1": torch.tensor([1])})
    finally:
        os.kill(pid, signal.SIGCONT)


def in_fork(layer: zagros.EmbeddingBags, answers: multiprocessing.Queue[str]) -> None:
    try:
        layer({"C1": torch.tensor([1])})
        answers.put("it was answered")
    except zagros.ZagrosError as error:
        answers.put(str(error))


def test_a_forked_process_is_refused_and_does_no_harm(layers: Layers) -> None:
    layer = layers()
    context = multiprocessing.get_context("fork")
    answers: multiprocessing.Queue[str] = context.Queue()
    child = context.Process(target=in_fork, args=(layer, answers))
    child.start()
    assert "was forked" in answers.get(timeout=LONG)
    child.join(LONG)
    assert child.exitcode == 0
    layer({"C1": torch.tensor([1])})["C1"].sum().backward()
    assert read(layer, [1]).tolist() == [[-1.0, -1.0]]


def test_a_forked_process_keeps_no_pipe_of_the_servers_and_closes_none_twice(layers: Layers) -> None:
    layer = layers()
    assert layer._servers is not None
    pipes = [child.stdin for child in layer._servers._children.values() if child.stdin is not None]
    pid = os.fork()
    if pid == 0:
        # Each writer still has its descriptor, which leads nowhere.
        places = [os.readlink(f"/proc/self/fd/{pipe.fileno()}") for pipe in pipes]
        os._exit(0 if places == [os.devnull] * 3 else 1)
    assert os.waitpid(pid, 0)[1] == 0


def test_workers_of_a_loader_do_not_disturb(layers: Layers) -> None:
    layer = layers(staleness=2)
    loader = torch.utils.data.DataLoader(torch.arange(64), batch_size=8, num_workers=2, multiprocessing_context="fork")
    for item in layer.ahead(loader, ids=lambda item: {"C1": item}):
        layer({"C1": item})["C1"].sum().backward()
    assert read(layer, list(range(64)))[:, 0].tolist() == [-1.0] * 64


LOOP = """
    import sys, torch, zagros
    layer = zagros.EmbeddingBags({"C1": 2}, servers="local:2", staleness=4, optimizer=zagros.SGD(lr=1.0), timeout=20.0)
    print(*layer._servers.pids().values(), flush=True)
    print(layer._servers.folder, flush=True)
    for step in range(int(sys.argv[1])):
        layer({"C1": torch.arange(500) + step})["C1"].sum().backward()
"""


@pytest.mark.parametrize("end", ["", "sys.exit(3)", "1 / 0"], ids=["end", "exit", "error"])
def test_the_end_of_the_interpreter_flushes_and_ends_the_servers(end: str) -> None:
    program = run(f"{textwrap.dedent(LOOP)}\n{end}", "20")
    out, err = program.communicate(timeout=LONG)
    expected = {"": 0, "1 / 0": 1}.get(end, 3)
    assert program.returncode == expected, err
    assert "may be lost" not in err
    pids, folder = out.splitlines()
    assert are_gone([int(pid) for pid in pids.split()])
    assert not Path(folder).exists()


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM])
def test_servers_end_with_a_process_that_is_killed_and_the_next_one_removes_their_folder(sent: int, layers: Layers) -> None:
    program = run(LOOP, str(10**9))
    assert program.stdout is not None
    pids = [int(pid) for pid in program.stdout.readline().split()]
    folder = Path(program.stdout.readline().strip())
    assert len(pids) == 3 and all(is_alive(pid) for pid in pids)
    time.sleep(0.5)
    layers(servers="local:1").close()
    assert folder.exists()
    program.send_signal(sent)
    program.wait()
    # They wait for their worker until its lease ends.
    assert are_gone(pids, within=LONG)
    program.stdout.close()
    layers(servers="local:1")
    assert not folder.exists()


def test_ctrl_c_in_a_loop_is_a_keyboard_interrupt_and_the_rows_are_there() -> None:
    script = """
        import sys, torch, zagros
        layer = zagros.EmbeddingBags({"C1": 1}, servers="local:1", optimizer=zagros.SGD(lr=1.0), init=zagros.Zero(), timeout=20.0)
        print("ready", flush=True)
        pushed = 0
        try:
            while True:
                layer({"C1": torch.tensor([1])})["C1"].sum().backward()
                pushed += 1
        except KeyboardInterrupt:
            layer.release()
        with torch.no_grad():
            layer.flush()
            print(pushed, layer({"C1": torch.tensor([1])})["C1"].item())
    """
    program = run(script)
    assert program.stdout is not None and program.stdout.readline().strip() == "ready"
    time.sleep(0.5)
    program.send_signal(signal.SIGINT)
    out, err = program.communicate(timeout=LONG)
    assert program.returncode == 0, err
    pushed, row = (float(number) for number in out.split())
    # The interrupt may come between a push and its count. The row has each push once.
    assert 0 < pushed <= -row <= pushed + 1


def test_the_end_of_a_lookup_runs_no_python_code(layers: Layers) -> None:
    """Python ignores what is raised there, also the interrupt of Ctrl-C."""
    layer = layers(servers="local:1")
    rows = layer({"C1": torch.tensor([1])})
    called: list[str] = []
    sys.setprofile(lambda frame, event, _: called.append(frame.f_code.co_name) if event == "call" else None)
    del rows
    sys.setprofile(None)
    assert called == []


def test_ctrl_c_ends_a_wait(layers: Layers) -> None:
    layer = layers(servers="local:1")
    assert layer._servers is not None
    pid = layer._servers.pids()["embedding-server-0"]
    stop(pid)
    try:
        timer = threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT))
        timer.start()
        started = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            layer({"C1": torch.tensor([1])})
        assert time.monotonic() - started < LONG / 2
    finally:
        os.kill(pid, signal.SIGCONT)
    layer({"C1": torch.tensor([1])})["C1"].sum().backward()
    assert read(layer, [1]).tolist() == [[-1.0, -1.0]]


def test_a_wait_lets_other_threads_run(layers: Layers) -> None:
    layer = layers(servers="local:1")
    assert layer._servers is not None
    pid = layer._servers.pids()["embedding-server-0"]
    counted = 0
    stop(pid)

    def count() -> None:
        nonlocal counted
        for _ in range(50):
            time.sleep(0.01)
            counted += 1
        os.kill(pid, signal.SIGCONT)

    thread = threading.Thread(target=count)
    thread.start()
    layer({"C1": torch.tensor([1])})
    assert counted == 50
    thread.join()


def test_two_layers_have_rows_of_their_own(layers: Layers) -> None:
    first, second = layers(), layers()
    first({"C1": torch.tensor([1])})["C1"].sum().backward()
    assert read(first, [1])[0, 0] == -1.0 and read(second, [1])[0, 0] == 0.0


def test_a_closed_layer_says_so_and_a_coordinator_that_is_not_there_too(layers: Layers) -> None:
    layer = layers()
    layer.close()
    layer.close()
    with pytest.raises(zagros.ZagrosError, match="is closed"):
        layer({"C1": torch.tensor([1])})
    with pytest.raises(zagros.ZagrosError, match=r"check that coordinator \(127.0.0.1:1\) runs"):
        zagros.EmbeddingBags({"C1": 2}, servers="127.0.0.1:1", timeout=0.5)
