"""A coordinator and embedding servers as child processes, which end when this process does.

Each child reads its standard input, a pipe of this process, and stops when the pipe closes: also after ``kill -9`` of this
process.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pathlib
import secrets
import shutil
import subprocess
import tempfile
import time
import weakref
from collections.abc import Sequence

from ._native import NativeSession, ZagrosError

_PACKAGE = pathlib.Path(__file__).parent
#: Travels in the wheel, with the system libraries that it needs.
PROGRAM = _PACKAGE / "_server" / "zagros-server"
_LIBRARIES = _PACKAGE / "_server" / "lib"
#: Seconds that a child has to end by itself.
_PATIENCE = 5.0
#: Seconds between two looks at the children.
_LOOK = 0.2
_LOOPBACK = "127.0.0.1:0"
_PREFIX = "zagros-"
#: The file in a folder that its process has locked. The kernel unlocks it, however the process ends.
_LOCK = "lock"


class LocalServers:
    """The processes of one run on this machine. Their logs are in ``folder`` until they end well."""

    def __init__(self, job: str, servers: int, stores: Sequence[str], timeout: float) -> None:
        if not PROGRAM.is_file():
            raise ZagrosError(f"{PROGRAM} is missing; install the wheel of zagros again, or start servers elsewhere and give the coordinator's host:port")
        _remove_abandoned()
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix=_PREFIX))
        self._lock = open(self.folder / f"{_LOCK}.new", "wb")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        (self.folder / f"{_LOCK}.new").rename(self.folder / _LOCK)
        self.secret = secrets.token_hex(32)
        self._owner = os.getpid()
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        (self.folder / "job.toml").write_text(job)
        _LIVE.add(self)
        try:
            self.coordinator = self._start("coordinator", _LOOPBACK, [], timeout)
            for index in range(servers):
                more = ["--index", str(index)]
                for folder in ("/", *stores):
                    more += ["--storage-folder", folder]
                self._start(f"embedding-server-{index}", self.coordinator, more, timeout)
        except BaseException:
            self.stop()
            raise

    def _start(self, name: str, coordinator: str, more: list[str], timeout: float) -> str:
        """Starts a role, and returns its address once it listens."""
        announce = self.folder / f"{name}.json"
        role = "coordinator" if name == "coordinator" else "embedding-server"
        command = [str(PROGRAM), role, str(self.folder / "job.toml"), "--announce", str(announce), "--exit-with-parent", *more]
        local = {"coordinator": coordinator, "server_addresses": [_LOOPBACK], "admin": _LOOPBACK}
        local |= {"cold_folder": str(self.folder / "cold-rows"), "log_folder": str(self.folder / "row-log")}
        for key, value in local.items():
            command += ["--set", f"cluster.{key}={json.dumps(value)}"]
        path = os.pathsep.join(filter(None, [str(_LIBRARIES), os.environ.get("LD_LIBRARY_PATH")]))
        environment = {key: value for key, value in os.environ.items() if not key.startswith("ZAGROS_")}
        environment |= {"ZAGROS_RUN_SECRET": self.secret, "LD_LIBRARY_PATH": path}
        with open(self.folder / f"{name}.log", "wb") as log:
            # A session of its own: Ctrl-C is for this process, which may still have gradients to push.
            child = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=log, stderr=log, env=environment, start_new_session=True
            )
        self._children[name] = child
        deadline = time.monotonic() + timeout
        while True:
            with contextlib.suppress(FileNotFoundError):
                return str(json.loads(announce.read_text())["address"])
            self.check()
            if time.monotonic() > deadline:
                raise ZagrosError(f"{name} did not listen within {timeout} s; its log says:\n{self._log(name)}")
            time.sleep(0.01)

    def check(self) -> None:
        """Raises when a process has ended."""
        for name, child in self._children.items():
            code = child.poll()
            if code is not None:
                # One that ends by itself says why in its last line, such as that another rank has failed.
                why = self._log(name).splitlines()[-1]
                how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code} ({why})"
                raise ZagrosError(
                    f"{name} (process {child.pid}) {how}, and its rows are lost; make the embedding layer again and load "
                    f"the newest save. Its log {self.folder / name}.log says:\n{self._log(name)}"
                )

    def watch(self, session: NativeSession) -> None:
        """Ends the run when a process is killed, so that every rank hears of it, also while this one waits for a collective of
        the dense network. One that ends by itself tells the coordinator."""
        while children := list(self._children.values()):
            if any((child.poll() or 0) < 0 for child in children):
                with contextlib.suppress(Exception):
                    try:
                        self.check()
                    except ZagrosError as killed:
                        session.close(str(killed))
                return
            time.sleep(_LOOK)

    def _log(self, name: str) -> str:
        lines = (self.folder / f"{name}.log").read_text(errors="replace").splitlines()
        return "\n".join(lines[-5:]) or "(nothing)"

    def pids(self) -> dict[str, int]:
        """The ids of the processes, by role."""
        return {name: child.pid for name, child in self._children.items()}

    def stop(self) -> None:
        """Ends the processes, and removes their folder if all of them end well."""
        if self._owner != os.getpid():
            return
        children, self._children = self._children, {}
        for child in children.values():
            if child.stdin is not None:
                with contextlib.suppress(OSError):
                    child.stdin.close()
        deadline = time.monotonic() + _PATIENCE
        for child in children.values():
            try:
                child.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        if all(child.returncode == 0 for child in children.values()):
            shutil.rmtree(self.folder, ignore_errors=True)
        # Without this file no other process removes the logs of what failed.
        (self.folder / _LOCK).unlink(missing_ok=True)
        self._lock.close()

    def forget(self) -> None:
        """In a forked child: its copies of the pipes must not keep the processes alive."""
        nothing = os.open(os.devnull, os.O_WRONLY)
        for child in self._children.values():
            if child.stdin is not None:
                # Not closed here: the writer that has the descriptor closes it.
                os.dup2(nothing, child.stdin.fileno(), inheritable=False)
        os.close(nothing)
        self._lock.close()
        self._children = {}


def _remove_abandoned() -> None:
    """Removes the folders of processes that had no time to do it, such as killed ones."""
    for path in pathlib.Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/{_LOCK}"):
        # Another user's cannot be opened, and one in use cannot be locked.
        with contextlib.suppress(OSError), open(path, "r+b") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path.parent, ignore_errors=True)


def _forget_all() -> None:
    for servers in _LIVE:
        servers.forget()


_LIVE: weakref.WeakSet[LocalServers] = weakref.WeakSet()
os.register_at_fork(after_in_child=_forget_all)
