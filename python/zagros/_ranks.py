"""The ranks of ``torch.distributed`` that train with one embedding layer, and what they tell each other.

Rows and gradients go between each rank and the servers. The ranks exchange only a few numbers: that the pushes of a step are
acknowledged, whether a step has overflowed, where the coordinator is, that rank 0 has saved. They do so in a process group of
their own, on the CPU, so that nothing comes between the collectives of the dense network.

Each wait ends: at once when a process of the group has ended, when the coordinator has ended the run (a rank that is silent
is lost after its lease and the job's timeout), and at a deadline.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import pathlib
import socket
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from ._native import NativeSession, ZagrosError
from ._servers import LocalServers

Result = TypeVar("Result")

#: Seconds that ranks wait for one that is alive and does not take part: those of ``torch.distributed``.
PATIENCE = 1800.0
#: Seconds within which the coordinator's word reaches every rank.
_HEARTBEAT = 1.5
#: Seconds between two looks at the session during a wait.
_LOOK = 0.1
_NEXT = "start all ranks again and load the newest save"


class Ranks:
    """This process among those of the default process group; alone without one.

    Attributes:
        rank: Its position.
        size: How many there are.
        session: Its session, once it has one: who waits looks there for the end of the run, and tells it why a wait failed.
        servers: Those that this process has started: who waits looks at them, too.
    """

    def __init__(self) -> None:
        self.rank, self.size = 0, 1
        self.session: NativeSession | None = None
        self.servers: LocalServers | None = None
        self._members: list[tuple[str, int]] = []
        self._broken = ""
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            self.rank, self.size = dist.get_rank(), dist.get_world_size()
            self._group = dist.new_group(backend="gloo")
            own = json.dumps([socket.gethostname(), os.getpid()])
            self._members = [tuple(json.loads(text)) for text in self.tell("the start of the embedding layer", own)]

    @property
    def hosts(self) -> list[str]:
        """The machines of the ranks, each once."""
        return sorted({host for host, _ in self._members})

    def agree(self, what: str, numbers: Sequence[int]) -> list[list[int]]:
        """The numbers of each rank, by rank. Returns once every rank has called this.

        Raises:
            ZagrosError: A rank has ended or does not take part in ``what``.
        """
        if self.size == 1:
            return [list(numbers)]
        return [part.tolist() for part in self._gather(what, torch.tensor(numbers, dtype=torch.int64))]

    def tell(self, what: str, text: str) -> list[str]:
        """The text of each rank, by rank."""
        if self.size == 1:
            return [text]
        content = text.encode()
        sizes = [size for [size] in self.agree(what, [len(content)])]
        padded = torch.zeros(max(sizes), dtype=torch.uint8)
        padded[: len(content)] = _bytes(content)
        parts = self._gather(what, padded)
        return [_text(part[:size]) for part, size in zip(parts, sizes, strict=True)]

    def each(self, what: str, work: Callable[[], Result]) -> Result:
        """Does ``work`` on every rank. When it fails on one of them, it is an error on all."""
        try:
            result = work()
        except BaseException as error:
            with contextlib.suppress(ZagrosError):
                self.tell(what, f"{type(error).__name__}: {error}")
            raise
        self._raise_first(what, self.tell(what, ""))
        return result

    def of_first(self, what: str, work: Callable[[], bytes]) -> bytes:
        """Does ``work`` on rank 0 alone, and returns its result on every rank. An error is one on all."""
        if self.size == 1:
            return work()
        content = self.each(what, work if self.rank == 0 else lambda: b"")
        sizes = self.agree(what, [len(content)])
        shared = torch.zeros(sizes[0][0], dtype=torch.uint8)
        if self.rank == 0:
            shared = _bytes(content)
        self._wait(what, lambda: dist.broadcast(shared, 0, group=self._group, async_op=True))
        return bytes(shared.numpy())

    def _raise_first(self, what: str, errors: list[str]) -> None:
        for rank, error in enumerate(errors):
            if error:
                raise ZagrosError(f"{what} failed on rank {rank}: {error}")

    def _gather(self, what: str, own: Tensor) -> list[Tensor]:
        parts = [torch.empty_like(own) for _ in range(self.size)]
        self._wait(what, lambda: dist.all_gather(parts, own, group=self._group, async_op=True))
        return parts

    def _wait(self, what: str, start: Callable[[], dist.Work]) -> None:
        """Waits for a collective of the group, and hears of Ctrl-C and of the end of the run meanwhile."""
        if self._broken:
            raise ZagrosError(f"the ranks are no longer in step: {self._broken}")
        try:
            work = start()
            self._poll(what, work)
            work.wait()
        except BaseException as error:
            self._broken = f"{what} was ended by {type(error).__name__}; {_NEXT}"
            _never_free(self._group, dist.group.WORLD)
            if not isinstance(error, RuntimeError):
                raise
            failed = error if isinstance(error, ZagrosError) else self.explained(what, error) or _lost(what, "another rank", error)
            if self.session is not None:
                with contextlib.suppress(Exception):
                    # The other ranks hear of it from the coordinator.
                    self.session.close(str(failed))
            raise failed from None

    def _poll(self, what: str, work: dist.Work) -> None:
        deadline = time.monotonic() + PATIENCE
        looked, pause = time.monotonic(), 0.0
        while not work.is_completed():
            time.sleep(pause)
            pause = min(pause + 2e-5, 1e-3)
            now = time.monotonic()
            if now > looked + _LOOK:
                looked = now
                self._look()
            if now > deadline:
                raise ZagrosError(
                    f"gave up {what} after {PATIENCE:.0f} s: another rank does not take part; all ranks look up, step, save and "
                    f"load the same number of times; {_NEXT}"
                )

    def explained(self, what: str, error: BaseException) -> ZagrosError | None:
        """Why a collective, ours or one of the dense network, has failed: what the coordinator says, or the ranks of this
        machine that have ended; None if neither is known."""
        deadline, gone = time.monotonic() + _HEARTBEAT, ""
        while time.monotonic() < deadline:
            # A connection ends a little before its process does.
            gone = gone or " and ".join(self._gone())
            try:
                self._look()
            except ZagrosError as reason:
                return reason
            time.sleep(0.02)
        return _lost(what, gone, error) if gone else None

    def _look(self) -> None:
        """Raises when the run or the servers have ended. The run first: servers end after it, and not each end is their fault."""
        if self.session is not None:
            self.session.check()
        if self.servers is not None:
            self.servers.check()

    def _gone(self) -> list[str]:
        """The ranks of this machine that have ended."""
        here = socket.gethostname()
        members = enumerate(self._members)
        return [f"rank {rank} (process {pid})" for rank, (host, pid) in members if host == here and not _is_alive(pid)]


def _lost(what: str, who: str, error: BaseException) -> ZagrosError:
    said = (str(error).splitlines() or [""])[0]
    return ZagrosError(f"{what} failed: {who} has ended or left the group; {_NEXT} (torch.distributed says: {said})")


def _never_free(*groups: object) -> None:
    """Keeps process groups beyond the end of the interpreter. Otherwise the end waits for their collectives, which a rank that
    is stopped never joins."""
    for group in groups:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))


def _is_alive(pid: int) -> bool:
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def _bytes(content: bytes) -> Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else torch.zeros(0, dtype=torch.uint8)


def _text(content: Tensor) -> str:
    return bytes(content.numpy()).decode()
