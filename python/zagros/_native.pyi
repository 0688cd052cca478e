"""Types of the native half (python/src)."""

from collections.abc import Callable

from typing_extensions import CapsuleType

class ZagrosError(RuntimeError):
    """What failed, where, why, and what to do next."""

def job_toml(json: str, name: str) -> tuple[str, str]:
    """The resolved TOML of a job that is given as JSON, and its fingerprint."""

class Batch:
    """A batch between its lookup and its push."""

    def inverse(self) -> list[CapsuleType]:
        """For each feature, the positions of its ids in the rows of its table: int64 tensors."""

    def release(self) -> None:
        """Gives the batch up: its lookup, its place in the window, its push."""

class NativeSession:
    """A worker's connection to coordinator and servers. Waits release the interpreter's lock."""

    def __new__(
        cls, job: str, coordinator: str, secret: str | None = None, watch: Callable[[], None] | None = None
    ) -> NativeSession: ...
    def tables(self) -> list[tuple[str, int]]: ...
    def look_up(self, features: list[tuple[int, CapsuleType]], access: str) -> Batch: ...
    def rows(self, batch: Batch) -> list[tuple[int, CapsuleType]]: ...
    def push(self, batches: list[tuple[Batch, list[CapsuleType]]]) -> None: ...
    def end_step(self) -> None: ...
    def in_flight(self) -> tuple[int, int]: ...
    def flush(self) -> None: ...
    def close(self) -> None: ...
    def save(self, folder: str) -> tuple[list[tuple[str, int, bytes]], int]: ...
    def load(self, folder: str, files: list[tuple[str, int, bytes]]) -> int: ...
    def describe(self) -> list[tuple[str, int, int]]: ...

def id_of(value: str) -> int:
    """The id of a value in the data: a hash of 64 bits."""

def saved_tables(files: list[str]) -> list[tuple[str, int, str, list[str]]]:
    """The tables in files of rows: name, dim, type of weights, and the names of the parts of a row."""

class Blocks:
    """The rows of a table, a block at a time: ids uint64 ``[rows]``, and parts float32 ``[rows, values]`` by name."""

    def __iter__(self) -> Blocks: ...
    def __next__(self) -> tuple[CapsuleType, list[tuple[str, CapsuleType]]]: ...

class NativeTable:
    """One table across the files of a save."""

    def __new__(cls, files: list[tuple[str, str]], name: str) -> NativeTable: ...
    def row(self, id: int) -> list[tuple[str, CapsuleType]] | None: ...
    def blocks(self, with_state: bool) -> Blocks: ...
