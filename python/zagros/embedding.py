"""``EmbeddingBags``: embedding tables of a PyTorch network, held by embedding servers."""

from __future__ import annotations

import os
import pathlib
import sys
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, NoReturn, TypeVar

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler

from . import _saved
from ._ids import FlatIds, Ids, flatten, key_of
from ._job import job_of
from ._lookup import Lookup, PulledRows
from ._native import NativeSession, ZagrosError
from ._servers import LocalServers
from .settings import Adagrad, Bag, Init, Optimizer, Uniform, bags_of

Item = TypeVar("Item")


class EmbeddingBags(nn.Module):
    """One embedding vector for each feature of each sample, from tables that may be larger than this machine.

    The rows are on embedding servers, which also update them: the optimiser of these rows is not PyTorch's. ``forward``
    looks up the distinct ids of a batch, ``backward`` sends their gradients.

    Args:
        features: The dim of each feature by its name, or a :class:`zagros.Bag`.
        optimizer: How rows learn, such as ``zagros.Adagrad(lr=0.02)``.
        init: First value of a row. It is a function of seed, table and id alone.
        servers: ``"local:N"`` starts a coordinator and N embedding servers, which end with this process. ``"host:port"`` is
            the coordinator of a run that was started with the job file :attr:`job`.
        staleness: Batches whose gradients the rows of a lookup may miss, at most: the window. 0 is exact.
        push_at: ``"backward"`` pushes the gradients of each backward pass at once. ``"step"`` holds them until
            :meth:`step`, which pushes their sum: for gradient accumulation.
        scaler: The ``torch.amp.GradScaler`` of the loss. Implies ``push_at="step"``: :meth:`step` divides gradients by the
            scale, and drops those of a step that has overflowed.
        seed: Seed of first values.
        timeout: Seconds until a wait for a server is an error.
        secret: The run's secret, with ``"host:port"``. Default: ``ZAGROS_RUN_SECRET`` or the file ``ZAGROS_RUN_SECRET_FILE``.
        settings: More keys of the job file, with dots: ``{"cluster.memory": "4GiB", "tables.tags.clip_norm": 1.0}``.

    Raises:
        ValueError: A setting is wrong.
        ZagrosError: Servers do not start or do not answer.
    """

    def __init__(
        self,
        features: Mapping[str, int | Bag],
        *,
        optimizer: Optimizer = Adagrad(),
        init: Init = Uniform(),
        servers: str = "local:1",
        staleness: int = 4,
        push_at: str = "backward",
        scaler: GradScaler | None = None,
        seed: int = 1,
        timeout: float = 60.0,
        secret: str | None = None,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__()
        if push_at not in ("backward", "step"):
            raise ValueError(f"push_at is {push_at!r}; it is \"backward\" or \"step\"")
        _check_alone()
        self._bags = bags_of(features)
        self._scaler = scaler
        self._at_step = push_at == "step" or scaler is not None
        local = _local(servers)
        self.staleness = staleness
        #: The job file of the tables, as TOML: what coordinator and servers are started with.
        self.job, self._fingerprint = job_of(
            self._bags,
            optimizer=optimizer,
            init=init,
            servers=local or int(dict(settings or {}).get("cluster.servers", 1)),  # type: ignore[call-overload]
            staleness=staleness,
            seed=seed,
            timeout=timeout,
            settings=settings or {},
        )
        self._servers = LocalServers(self.job, local, timeout) if local else None
        coordinator = self._servers.coordinator if self._servers else servers
        secret = self._servers.secret if self._servers else secret or _secret()
        try:
            watch = self._servers.check if self._servers else None
            self._session = NativeSession(self.job, coordinator, secret, watch)
        except BaseException:
            if self._servers:
                self._servers.stop()
            raise
        tables = [name for name, _ in self._session.tables()]
        self._tables = {name: tables.index(bag.table or name) for name, bag in self._bags.items()}
        # Rows need no gradient themselves: this makes torch call `PulledRows.backward`.
        self._anchor = torch.zeros((), requires_grad=True)
        self._held: list[tuple[Lookup, list[Tensor]]] = []
        self._sent: dict[tuple[object, ...], tuple[Lookup, Mapping[str, Ids]]] = {}
        #: Whether the ids that `ahead` looks up are those that `forward` is given.
        self._matches = True
        self._alive: weakref.WeakSet[Lookup] = weakref.WeakSet()
        #: Steps whose gradients were pushed, and steps that were dropped because they overflowed.
        self.steps, self.dropped = 0, 0
        #: Samples that were looked up for training.
        self.samples = 0
        self._end = weakref.finalize(self, _end, self._session, self._servers)

    @torch.compiler.disable  # type: ignore[untyped-decorator, unused-ignore]
    def forward(self, ids: Mapping[str, Ids]) -> dict[str, Tensor]:
        """The vectors of a batch.

        In training mode with gradients enabled, ids without a row get one, and the batch takes a place in the window until
        its gradients are acknowledged. Otherwise rows are only read: an id without a row has its first value, which it would
        start to train from.

        Args:
            ids: For each feature int64 ids: ``[batch]``, ``[batch, n]``, or a pair of ids ``[total]`` and offsets ``[batch]``
                as ``torch.nn.EmbeddingBag`` takes them. All 64 bits count; negative ids are ids like others.

        Returns:
            For each feature a tensor ``[batch, dim]`` of float32, on the device of its ids.
        """
        flat = flatten(self._bags, ids)
        lookup = self._sent_before(ids) or self._look_up(flat)
        rows = self._rows(lookup, next(iter(flat.values())).device)
        if not lookup.reads:
            self.samples += next(iter(flat.values())).samples
        vectors = {}
        for (name, found), positions in zip(flat.items(), lookup.inverse(), strict=True):
            vectors[name] = found.pool(rows[self._tables[name]], positions, self._bags[name].pooling)
        return vectors

    def ahead(self, loader: Iterable[Item], ids: Callable[[Item], Mapping[str, Ids]] = lambda item: item) -> Iterator[Item]:  # type: ignore[assignment,return-value]
        """The items of ``loader``, whose lookups are sent up to ``staleness`` batches early.

        Args:
            loader: Batches, such as a ``DataLoader``.
            ids: What :meth:`forward` is called with, from an item: the same tensors, or views of the same memory.
        """
        if self._at_step or not self._trains():
            # Which batches share a step is known when `step` is called.
            yield from loader
            return
        self._matches = True
        waiting: deque[tuple[Item, tuple[object, ...]]] = deque()
        source = iter(loader)
        try:
            for item in source:
                waiting.append((item, self._send(ids(item))))
                if len(waiting) > self.staleness:
                    yield from self._next(waiting)
            while waiting:
                yield from self._next(waiting)
        finally:
            while waiting:
                self._forget(waiting.popleft()[1])

    def _next(self, waiting: deque[tuple[Item, tuple[object, ...]]]) -> Iterator[Item]:
        item, key = waiting.popleft()
        try:
            yield item
        finally:
            self._forget(key)

    def _sent_before(self, ids: Mapping[str, Ids]) -> Lookup | None:
        """The early lookup of these ids. Where others were looked up early, those would hold the window for ever."""
        if not self._sent or not self._trains():
            return None
        sent = self._sent.pop(key_of(ids), None)
        if sent is not None:
            return sent[0]
        self._matches = False
        for key in list(self._sent):
            self._forget(key)
        warnings.warn("ahead() looked up other tensors than forward() was given; no more lookups are sent early", stacklevel=4)
        return None

    def _send(self, ids: Mapping[str, Ids]) -> tuple[object, ...]:
        key = key_of(ids)
        if self._matches and key not in self._sent:
            # The ids are kept, so that no other batch gets their memory meanwhile.
            self._sent[key] = (self._look_up(flatten(self._bags, ids)), ids)
        return key

    def _forget(self, key: tuple[object, ...]) -> None:
        sent = self._sent.pop(key, None)
        if sent is not None:
            sent[0].batch.release()

    def step(self) -> bool:
        """Pushes the sum of the gradients of all backward passes since the last step, as one update of each row.

        With a scaler, call it after ``scaler.update()``.

        Returns:
            Whether anything was pushed. Gradients of a step that has overflowed are dropped.
        """
        if not self._at_step:
            raise ZagrosError('gradients are pushed by backward(); make the layer with push_at="step" or a scaler')
        held, self._held = self._held, []
        self._session.end_step()
        scale = self._scaler.get_scale() if self._scaler is not None else 1.0
        parts = [(lookup, [table / lookup.scale for table in tables]) for lookup, tables in held]
        finite = all(bool(torch.isfinite(table).all()) for _, tables in parts for table in tables)
        # A scale that shrinks says that the scaler has skipped the step of the dense network.
        if self._scaler is not None and (not finite or any(scale < lookup.scale for lookup, _ in held)):
            for lookup, _ in held:
                lookup.batch.release()
            self.dropped += 1
            return False
        self._push(parts)
        return bool(parts)

    def release(self) -> None:
        """Gives up all batches that were looked up for training and not pushed, such as those of a loop that has failed."""
        for lookup in list(self._alive):
            lookup.batch.release()
        self._held.clear()
        self._sent.clear()
        self._session.end_step()

    def flush(self) -> None:
        """Waits until every push is acknowledged."""
        self._session.flush()

    def close(self) -> None:
        """Flushes, leaves the run and ends local servers. It is called at the end of the process by itself."""
        if self._end.detach() is not None:
            try:
                self._session.close()
            finally:
                if self._servers is not None:
                    self._servers.stop()

    def rows(self) -> dict[str, int]:
        """The number of rows of each table, after all pushes."""
        return {table: rows for table, rows, _ in self._session.describe()}

    def save(self, folder: str | os.PathLike[str], dense: nn.Module | None = None) -> None:
        """Saves all rows with their optimiser's state, and the dense part's ``state_dict`` beside them.

        ``zagros inspect`` and :func:`zagros.open` read the folder. It holds a save once its manifest is there, which is
        written last.

        Args:
            folder: A folder on a disk that all servers reach under this name; made if it is not there.
            dense: The network on top.
        """
        state = {} if dense is None else dense.state_dict()
        _saved.write(
            self._session, pathlib.Path(folder).absolute(), state, self.job, self._fingerprint, self.steps, self.samples
        )

    def load(self, folder: str | os.PathLike[str], dense: nn.Module | None = None) -> None:
        """Loads a save of any number of servers, in the place of all rows that the servers hold.

        Args:
            folder: What :meth:`save` or a run of the trainer has written. Tables are matched by name.
            dense: The network on top; takes its ``state_dict``.
        """
        self.release()
        state, manifest = _saved.read(self._session, pathlib.Path(folder).absolute())
        if dense is not None:
            dense.load_state_dict(state)
        self.steps, self.samples = manifest.steps, manifest.samples

    def __enter__(self) -> EmbeddingBags:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is not None:
            self.release()
        self.close()

    def __getstate__(self) -> NoReturn:
        raise TypeError("an embedding layer cannot be copied or sent to another process: its rows are on servers; use save()")

    def __deepcopy__(self, memo: Any) -> NoReturn:
        self.__getstate__()

    def extra_repr(self) -> str:
        """What ``print`` shows."""
        return ", ".join(f"{name}={bag.dim} ({bag.pooling})" for name, bag in self._bags.items())

    def _trains(self) -> bool:
        return self.training and torch.is_grad_enabled()

    def _look_up(self, flat: Mapping[str, FlatIds]) -> Lookup:
        features = [(self._tables[name], found.flat.__dlpack__()) for name, found in flat.items()]
        reads = not self._trains()
        access = "read" if reads else "accumulate" if self._at_step else "train"
        lookup = Lookup(self, self._session.look_up(features, access), reads)
        self._alive.add(lookup)
        return lookup

    def _rows(self, lookup: Lookup, device: torch.device) -> dict[int, Tensor]:
        """The rows of each table, by its position."""
        found = lookup.rows()
        rows = [table for _, table in found]
        if lookup.reads:
            pulled = tuple(table.to(device) for table in rows)
        else:
            pulled = PulledRows.apply(self._anchor, lookup, device, *rows)  # type: ignore[no-untyped-call]
        return {table: values for (table, _), values in zip(found, pulled, strict=True)}

    def _take(self, lookup: Lookup, gradients: tuple[Tensor, ...]) -> None:
        """The gradients of a batch, from backward."""
        tables = [table.detach().to("cpu", torch.float32).contiguous() for table in gradients]
        if not self._at_step:
            self._push([(lookup, tables)])
            return
        if any(held is lookup for held, _ in self._held):
            raise ZagrosError("backward() was called twice on one batch; look its ids up again")
        lookup.scale = self._scaler.get_scale() if self._scaler is not None else 1.0
        self._held.append((lookup, tables))

    def _push(self, parts: list[tuple[Lookup, list[Tensor]]]) -> None:
        if self._servers is not None:
            self._servers.check()
        self._session.push([(lookup.batch, [table.__dlpack__() for table in tables]) for lookup, tables in parts])
        self.steps += bool(parts)


def _local(servers: str) -> int:
    """How many servers are to be started; 0 for a coordinator elsewhere."""
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


def _secret() -> str | None:
    text = os.environ.get("ZAGROS_RUN_SECRET")
    file = os.environ.get("ZAGROS_RUN_SECRET_FILE")
    return text or (pathlib.Path(file).read_text() if file else None)


def _check_alone() -> None:
    """Several processes would each train rows of their own, with nobody told."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        size = torch.distributed.get_world_size()
        if size > 1:
            raise ZagrosError(f"an embedding layer is for one process, and this group has {size}; train with `zagros up` on several workers")


def _end(session: NativeSession, servers: LocalServers | None) -> None:
    """At the end of the process, or when nobody has the layer any more: says what was lost."""
    try:
        session.close()
    except Exception as error:
        print(f"zagros: gradients that were on their way may be lost: {error}", file=sys.stderr)
    finally:
        if servers is not None:
            servers.stop()
