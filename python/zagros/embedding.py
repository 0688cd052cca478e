"""``EmbeddingBags``: embedding tables of a PyTorch network, held by embedding servers."""

from __future__ import annotations

import os
import pathlib
import sys
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, NoReturn, TypeVar

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.parallel import DistributedDataParallel

from . import _connect, _saved
from ._ids import FlatIds, Ids, flatten, key_of
from ._job import job_of
from ._lookup import Lookup, PulledRows
from ._native import ZagrosError
from ._ranks import Ranks
from .settings import Adagrad, Bag, Init, Optimizer, Uniform, bags_of

Item = TypeVar("Item")
#: Folders whose code a warning is not about.
_LIBRARIES = tuple(str(pathlib.Path(file).parent) + os.sep for file in (__file__, torch.__file__))


class EmbeddingBags(nn.Module):
    """One embedding vector for each feature of each sample, from tables that may be larger than this machine.

    The rows are on embedding servers, which also update them: the optimiser of these rows is not PyTorch's. ``forward``
    looks up the distinct ids of a batch, ``backward`` sends their gradients.

    In a process group of ``torch.distributed`` every rank makes the layer, and each trains on its own batches. Rows learn from
    the mean of the ranks' losses, as the dense network does under ``DistributedDataParallel``. All ranks :meth:`save`,
    :meth:`load` and :meth:`step` together.

    Args:
        features: The dim of each feature by its name, or a :class:`zagros.Bag`.
        optimizer: How rows learn, such as ``zagros.Adagrad(lr=0.02)``.
        init: First value of a row. It is a function of seed, table and id alone.
        servers: ``"local:N"`` starts a coordinator and N embedding servers, which end with this process (with that of rank 0).
            ``"host:port"`` is the coordinator of a run that was started with the job file :attr:`job`.
        stores: Buckets or prefixes, ``s3://bucket/prefix``, that local servers may save to and load from, beside folders on a
            disk. Servers elsewhere are started with ``--storage-folder``.
        staleness: Batches whose gradients the rows of a lookup may miss, at most: the window, of each rank. 0 is exact, over
            all ranks.
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
        stores: Sequence[str] = (),
        staleness: int = 4,
        push_at: Literal["backward", "step"] = "backward",
        scaler: GradScaler | None = None,
        seed: int = 1,
        timeout: float = 60.0,
        secret: str | None = None,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__()
        if push_at not in ("backward", "step"):
            raise ValueError(f"push_at is {push_at!r}; it is \"backward\" or \"step\"")
        self._bags = bags_of(features)
        self._scaler = scaler
        self._at_step = push_at == "step" or scaler is not None
        local = _connect.local_servers(servers)
        if isinstance(stores, str):
            raise TypeError(f"stores is {stores!r}; it is a list, such as [{stores!r}]")
        self._skips = any(key.endswith(".non_finite") and value == "skip" for key, value in (settings or {}).items())
        self.staleness = staleness
        self._ranks = Ranks()
        #: The job file of the tables, as TOML: what coordinator and servers are started with.
        self.job, self._fingerprint = job_of(
            self._bags,
            optimizer=optimizer,
            init=init,
            servers=local or int(dict(settings or {}).get("cluster.servers", 1)),  # type: ignore[call-overload]
            workers=self._ranks.size,
            staleness=staleness,
            seed=seed,
            timeout=timeout,
            settings=settings or {},
        )
        self._session, self._servers = _connect.connect(
            self._ranks, self.job, servers, stores, secret, timeout
        )
        tables = [name for name, _ in self._session.tables()]
        self._tables = {name: tables.index(bag.table or name) for name, bag in self._bags.items()}
        # Rows need no gradient themselves: this makes torch call `PulledRows.backward`.
        self._anchor = torch.zeros((), requires_grad=True)
        self._held: list[tuple[Lookup, list[Tensor | None]]] = []
        self._sent: dict[tuple[object, ...], tuple[Lookup, Mapping[str, Ids]]] = {}
        #: Whether the ids that `ahead` looks up are those that `forward` is given.
        self._matches = True
        # Without callbacks, as a WeakSet has them: Python ignores an exception in one, and with it Ctrl-C.
        self._alive: list[weakref.ref[Lookup]] = []
        #: Steps whose gradients were pushed, and steps that were dropped because they overflowed.
        self.steps, self.dropped = 0, 0
        #: Rows whose gradients were not finite and left out: with ``settings={"embedding.non_finite": "skip"}``, by this rank.
        self.skipped = 0
        #: Samples that were looked up for training, by this rank.
        self.samples = 0
        # The number of the next step, and whether other ranks may have pushed in the step before.
        self._step, self._has_news = 0, False
        self._end = weakref.finalize(self, _connect.leave_at_exit, self._session, self._servers, self._ranks.size)

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
            ids: What :meth:`forward` is called with, from an item: the same tensors, or views of the same memory. Tensors that
                were changed in place meanwhile are other ids; a change through NumPy is not noticed.
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
        warnings.warn("ahead() looked up other tensors than forward() was given; no more lookups are sent early", stacklevel=_outside())
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
        parts = [(lookup, [None if table is None else table / lookup.scale for table in tables]) for lookup, tables in held]
        finite = all(bool(torch.isfinite(table).all()) for _, tables in parts for table in tables if table is not None)
        # A scale that shrinks says that the scaler has skipped the step of the dense network.
        overflowed = self._scaler is not None and (not finite or any(scale < lookup.scale for lookup, _ in held))
        if self._agrees_to_drop(overflowed):
            for lookup, _ in held:
                lookup.batch.release()
            self.dropped += 1
            self._end_step()
            return False
        self._push(parts)
        return bool(parts)

    def release(self) -> None:
        """Gives up all batches that were looked up for training and not pushed, such as those of a loop that has failed."""
        for alive in self._alive:
            if (lookup := alive()) is not None:
                lookup.batch.release()
        self._held.clear()
        self._sent.clear()
        self._session.end_step()

    def flush(self) -> None:
        """Waits until every push of this rank is acknowledged."""
        self._session.flush()

    def close(self) -> None:
        """Flushes, leaves the run and ends local servers. It is called at the end of the process by itself.

        Gradients that wait for :meth:`step` are not pushed, and a warning says so.
        """
        if self._held:
            count = len(self._held)
            warnings.warn(f"the gradients of {count} backward passes are lost: step() was not called after them", stacklevel=_outside())
            self.release()
        self._close(None)

    def _close(self, failure: str | None) -> None:
        if self._end.detach() is not None:
            _connect.leave(self._session, self._servers, self._ranks.size, failure)

    def rows(self) -> dict[str, int]:
        """The number of rows of each table, after all pushes of this rank."""
        return {table: rows for table, rows, _ in self._session.describe()}

    def save(self, folder: str | os.PathLike[str], dense: nn.Module | None = None, extra: Any = None) -> None:
        """Saves all rows with their optimiser's state, and the dense part's ``state_dict`` beside them.

        ``zagros inspect`` and :func:`zagros.open` read the folder. It holds a save once its manifest is there, which is
        written last. A save that the folder holds stays until then; in a store it is gone when the new one begins, so give each
        save a prefix of its own there. Of several ranks the first one writes, with the pushes of all, and all wait.

        Args:
            folder: A folder on a disk that all servers reach under this name, made if it is not there; or ``s3://bucket/prefix``,
                with the credentials and the endpoint of the environment (``AWS_ACCESS_KEY_ID``, …).
            dense: The network on top. Of a ``DistributedDataParallel`` the network inside is saved.
            extra: What else :meth:`load` returns, such as ``{"optimizer": optimizer.state_dict(), "epoch": 3}``: tensors, numbers and
                texts in dicts and lists. Rank 0's is saved.
        """
        if dense is not None and not isinstance(dense, nn.Module):
            raise TypeError(f"dense is {type(dense).__name__}; give the network, and the state of an optimiser as extra=")
        place = _saved.place(folder)
        self._session.flush()
        samples = sum(part for [part] in self._ranks.agree("a save", [self.samples]))

        def write() -> bytes:
            state = {} if dense is None else _plain(dense).state_dict()
            content = _saved.Content(self.steps, samples, self._step, _saved.dense_bytes(state), _saved.extra_bytes(extra))
            _saved.write(self._session, place, content, self.job, self._fingerprint)
            return b""

        self._ranks.of_first("a save", write)

    def load(self, folder: str | os.PathLike[str], dense: nn.Module | None = None) -> Any:
        """Loads a save of any number of servers and ranks, in the place of all rows that the servers hold.

        Steps are counted on from the save, so schedules of the rows go on. A layer whose push was refused can be used again.

        Args:
            folder: What :meth:`save` or a run of the trainer has written. Tables are matched by name. Of several ranks only
                the first one reads it, and the servers.
            dense: The network on top; takes its ``state_dict``.

        Returns:
            The ``extra`` of :meth:`save`; None without one.

        Raises:
            ZagrosError: There is no save, it is damaged, or ``dense`` has other weights. Rows then stay as they are, unless a file
                of rows is damaged.
        """
        place = _saved.place(folder)
        self.release()
        self._session.wait_for_pushes()
        self._ranks.agree("a load", [])
        loaded = _saved.Content.unpack(self._ranks.of_first("a load", lambda: _saved.read(place).pack()))
        state = loaded.state()
        if dense is not None:
            network = _plain(dense)
            self._ranks.each("a load", lambda: _saved.check_fits(place, state, network.state_dict()))
        self._ranks.of_first("a load", lambda: _saved.load_rows(self._session, place))
        self._session.reopen()
        if dense is not None:
            network.load_state_dict(state)
        self.steps, self._step, self._has_news = loaded.steps, loaded.step, False
        self.samples = loaded.samples if self._ranks.rank == 0 else 0
        return loaded.extra()

    def __enter__(self) -> EmbeddingBags:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            return self.close()
        self.release()
        if self._ranks.size == 1:
            return self.close()
        # A collective of the dense network says less of a rank that has ended.
        is_torchs = isinstance(error, RuntimeError) and not isinstance(error, ZagrosError)
        explained = self._ranks.explained("training", error) if error is not None and is_torchs else None
        # The other ranks wait for this one, and hear of its end.
        self._close(str(explained or f"{kind.__name__}: {error}"))
        if explained is not None:
            raise explained from error

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
        if not reads:
            self._see_all_pushes()
        access: Literal["read", "accumulate", "train"] = "read" if reads else "accumulate" if self._at_step else "train"
        lookup = Lookup(self._session, self._session.look_up(features, access), reads, self._take)
        self._alive = [alive for alive in self._alive if alive() is not None]
        self._alive.append(weakref.ref(lookup))
        return lookup

    def _see_all_pushes(self) -> None:
        """With staleness 0 a lookup sees what all ranks have pushed in the step before. All begin this step then."""
        if self.staleness == 0 and self._has_news:
            self._session.flush()
            self._step = max(step for [step] in self._ranks.agree("the wait for the pushes of a step", [self._step]))
            self._has_news = False

    def _rows(self, lookup: Lookup, device: torch.device) -> dict[int, Tensor]:
        """The rows of each table, by its position."""
        found = lookup.rows()
        rows = [table for _, table in found]
        if lookup.reads:
            pulled = tuple(table.to(device) for table in rows)
        else:
            pulled = PulledRows.apply(self._anchor, lookup, device, *rows)  # type: ignore[no-untyped-call]
        return {table: values for (table, _), values in zip(found, pulled, strict=True)}

    def _take(self, lookup: Lookup, gradients: tuple[Tensor | None, ...]) -> None:
        """The gradients of a batch, from backward; None for a table that the loss does not depend on."""
        tables = [None if table is None else table.detach().to("cpu", torch.float32).contiguous() for table in gradients]
        if not self._at_step:
            self._agrees_to_drop(False)
            self._push([(lookup, tables)])
            return
        if any(held is lookup for held, _ in self._held):
            raise ZagrosError("backward() was called twice on one batch; look its ids up again")
        lookup.scale = self._scaler.get_scale() if self._scaler is not None else 1.0
        self._held.append((lookup, tables))

    def _push(self, parts: list[tuple[Lookup, list[Tensor | None]]]) -> None:
        if self._servers is not None:
            self._servers.check()
        if self._skips:
            tables = (table for _, tables in parts for table in tables if table is not None)
            self.skipped += sum(int((~torch.isfinite(table).all(1)).sum()) for table in tables)
        given = [(lookup.batch, [None if table is None else table.__dlpack__() for table in tables]) for lookup, tables in parts]
        self._session.push(given, self._step)
        self.steps += bool(parts)
        self._end_step()

    def _agrees_to_drop(self, overflowed: bool) -> bool:
        """Whether a step is dropped on all ranks: it has overflowed on one. With staleness 0 it is pushed once all ranks have the
        rows that they look up for it."""
        if self.staleness > 0 and self._scaler is None:
            return overflowed
        return any(any(theirs) for theirs in self._ranks.agree("the agreement on a step", [overflowed]))

    def _end_step(self) -> None:
        self._step += 1
        self._has_news = self._ranks.size > 1


def _outside() -> int:
    """The stacklevel of the first frame that is neither of this package nor of torch."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_LIBRARIES):
        frame, level = frame.f_back, level + 1
    return level


def _plain(dense: nn.Module) -> nn.Module:
    """The network itself: names of its weights do not depend on the number of ranks."""
    return dense.module if isinstance(dense, DistributedDataParallel) else dense
