"""How an embedding layer comes to its session: it starts servers, or joins those that run, on all ranks or on none."""

from __future__ import annotations

import json
import os
import pathlib
import sys
import threading
from collections.abc import Sequence

from ._native import NativeSession, ZagrosError
from ._ranks import Ranks
from ._servers import LocalServers

#: Bytes of a file with a secret, at most.
_MOST = 4096


def local_servers(servers: str) -> int:
    """How many servers are to be started; 0 for a coordinator elsewhere."""
    if not isinstance(servers, str):
        raise TypeError(f"servers is {servers!r}; it is a text such as \"local:2\"")
    kind, _, count = servers.rpartition(":")
    if kind == "local":
        if not count.isdigit() or not 1 <= int(count) <= 1024:
            raise ValueError(f"servers is {servers!r}; local servers are \"local:1\" to \"local:1024\"")
        return int(count)
    if "," in servers:
        raise ValueError(f"servers is {servers!r}; give the coordinator's host:port alone, which knows the servers")
    if not kind or not count.isdigit():
        raise ValueError(f"servers is {servers!r}; it is \"local:N\", or \"host:port\" of a coordinator")
    return 0


def connect(
    ranks: Ranks, job: str, servers: str, stores: Sequence[str], secret: str | None, timeout: float
) -> tuple[NativeSession, LocalServers | None]:
    """Starts servers if that is asked for, on rank 0, and joins their run as the worker of this rank.

    Raises:
        ZagrosError: Servers do not start or do not answer, here or on another rank.
    """
    local, started = local_servers(servers), None

    def start() -> bytes:
        nonlocal started
        if local:
            if len(ranks.hosts) > 1:
                raise ZagrosError(
                    f"servers is {servers!r}, and ranks run on {', '.join(ranks.hosts)}: local servers listen on a loopback "
                    "address; start servers as docs/how-to/several-machines.md shows, and give the coordinator's host:port"
                )
            started = LocalServers(job, local, stores, timeout)
            return json.dumps([started.coordinator, started.secret]).encode()
        return json.dumps([servers, None]).encode()

    try:
        coordinator, shared = json.loads(ranks.of_first("the start of the servers", start))
        own = shared or secret or _secret()
        ranks.servers = started
        watch = started.check if started else None
        ranks.each("joining the run", lambda: _join(ranks, NativeSession(job, ranks.rank, coordinator, own, watch)))
    except BaseException:
        if ranks.session is not None:
            ranks.session.close("another rank did not start")
        if started:
            started.stop()
        raise
    assert ranks.session is not None
    if started:
        threading.Thread(target=started.watch, args=(ranks.session,), daemon=True, name="zagros-servers").start()
    return ranks.session, started


def _join(ranks: Ranks, session: NativeSession) -> None:
    ranks.session = session


def leave(session: NativeSession, servers: LocalServers | None, size: int, failure: str | None = None) -> None:
    """Leaves the run, and ends servers that this process has started: not before the other ranks have left."""
    try:
        session.close(failure)
        if servers is not None and size > 1 and failure is None:
            session.wait_for_other_workers()
    finally:
        if servers is not None:
            servers.stop()


def leave_at_exit(session: NativeSession, servers: LocalServers | None, size: int) -> None:
    """Leaves at the end of the process, or when the program holds the layer no more, and says what was lost."""
    try:
        leave(session, servers, size)
    except Exception as error:
        print(f"zagros: gradients that were on their way may be lost: {error}", file=sys.stderr)


def _secret() -> str | None:
    text = os.environ.get("ZAGROS_RUN_SECRET")
    file = os.environ.get("ZAGROS_RUN_SECRET_FILE")
    return text or (_secret_of(pathlib.Path(file)) if file else None)


def _secret_of(file: pathlib.Path) -> str:
    """As the program `zagros` reads it."""
    about = file.stat()
    if about.st_mode & 0o007:
        raise ZagrosError(f"every user of this machine can use the secret in {file}; next: chmod o-rwx {file}")
    if about.st_size > _MOST:
        raise ZagrosError(f"{file} has {about.st_size} bytes; a secret has 64 hexadecimal digits")
    return file.read_text()
