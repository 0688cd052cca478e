"""Folders of saves: rows, dense weights, the job, and the manifest that says by which bytes each is known.

The manifest is that of the trainer (docs/snapshots.md): written last, with its own SHA-256 in it. A save in the place of another one has
files of other names, so the older one is whole until the new manifest is there.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import pathlib
import secrets
import shutil
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ._native import NativeFolder, NativeSession, ZagrosError

if TYPE_CHECKING:
    from torch import Tensor

MANIFEST = "manifest.json"
DENSE = "dense.safetensors"
JOB = "job.toml"
EXTRA = "extra.pt"
#: Layout of the folder.
FORMAT = 1
_NO_SEAL = "0" * 64
#: Steps, samples, the number of the next step, bytes of the dense weights.
_HEAD = struct.Struct("<4Q")
#: Seconds of a request to an object store, with retries.
_TIMEOUT = 60.0


@dataclass(frozen=True)
class Manifest:
    """What a folder holds."""

    #: A path, or ``s3://bucket/prefix``.
    place: str
    #: The manifest's keys.
    keys: Mapping[str, Any]

    @property
    def folder(self) -> pathlib.Path:
        """The folder on a disk."""
        return pathlib.Path(self.place)

    @property
    def steps(self) -> int:
        """Steps trained."""
        return int(self.keys["steps"])

    @property
    def samples(self) -> int:
        """Samples trained on."""
        return int(self.keys["samples"])

    def file(self, name: str) -> bytes:
        """One of the files, compared with what was saved."""
        record = next((file for file in self.keys["files"] if file["name"] == name), None)
        if record is None:
            raise ZagrosError(f"{self.place}/{MANIFEST} does not name {name}; it is of another save")
        content = NativeFolder(self.place, _TIMEOUT).read(name)
        if hashlib.sha256(content).hexdigest() != record["sha256"]:
            raise ZagrosError(f"{self.place}/{name} is not the file that was saved: it is damaged or of another save; use another one")
        return content

    def row_files(self) -> list[tuple[str, int, bytes]]:
        """Name, bytes and SHA-256 of each file of rows."""
        records = {file["name"]: file for file in self.keys["files"]}
        found = [records[name] for name in self.keys["row_files"]]
        return [(file["name"], int(file["bytes"]), bytes.fromhex(file["sha256"])) for file in found]


def write_file(path: pathlib.Path, content: bytes) -> None:
    """Whole or not at all."""
    NativeFolder(str(path.parent), _TIMEOUT).write(path.name, content)


def open_manifest(folder: str) -> Manifest:
    """Reads the manifest of a model's folder, or of the folder of its run."""
    for place in (folder, f"{folder}/model"):
        files = NativeFolder(place, _TIMEOUT)
        if files.has(MANIFEST):
            text = files.read(MANIFEST)
            break
    else:
        raise ZagrosError(f"{folder} holds no model: there is no {MANIFEST}, nor one in {folder}/model")
    try:
        keys = json.loads(text)
    except ValueError as error:
        raise ZagrosError(f"{place}/{MANIFEST} is damaged ({error}); use another save") from None
    if keys.get("format") != FORMAT:
        raise ZagrosError(f"{place} has the format {keys.get('format')}, and this release reads format {FORMAT}")
    seal = str(keys.get("manifest_sha256", ""))
    if seal != _seal(text, seal):
        raise ZagrosError(f"{place}/{MANIFEST} is damaged (it is not the one that was written); use another save")
    return Manifest(place, keys)


def write(session: NativeSession, folder: str, content: Content, job: str, fingerprint: str) -> None:
    """Saves rows and dense weights; the manifest last."""
    target = NativeFolder(folder, _TIMEOUT)
    target.make()
    old = _names(target)
    if old is None or "://" in folder:
        start(folder)
        rows, count = session.save(folder)
        conclude(folder, rows, count, content, job, fingerprint)
        return
    # Another name of every file that differs by save.
    tag = f".save-{secrets.token_hex(4)}"
    rows, count = _save_beside(session, pathlib.Path(folder), tag)
    new = {_tagged(DENSE, tag), _tagged(EXTRA, tag), *(name for name, _, _ in rows)}
    try:
        conclude(folder, rows, count, content, job, fingerprint, tag=tag)
    finally:
        for name in (old | new) - (_names(target) or old | new):
            target.delete(name)


def _tagged(name: str, tag: str) -> str:
    """The name of a file of this save: ``dense.save-0a1b2c3d.safetensors``."""
    stem, ending = name.rsplit(".", 1)
    return f"{stem}{tag}.{ending}"


def _names(target: NativeFolder) -> set[str] | None:
    """The files that the manifest of a folder names; None if it has none that can be read."""
    try:
        return {file["name"] for file in json.loads(target.read(MANIFEST))["files"]}
    except (ZagrosError, ValueError, KeyError, TypeError):
        return None


def _save_beside(session: NativeSession, folder: pathlib.Path, tag: str) -> tuple[list[tuple[str, int, bytes]], int]:
    """Has the servers write rows into a folder of their own, and moves them beside the older ones once all are written."""
    place = folder / tag
    try:
        rows, count = session.save(str(place))
        named = [(_tagged(name, tag), size, sha256) for name, size, sha256 in rows]
        for (name, _, _), (new, _, _) in zip(rows, named, strict=True):
            os.replace(place / name, folder / new)
        return named, count
    finally:
        shutil.rmtree(place, ignore_errors=True)


def start(folder: str) -> None:
    """Makes the folder, and takes away an older manifest: at no time one describes other files."""
    target = NativeFolder(folder, _TIMEOUT)
    target.make()
    target.delete(MANIFEST)


def conclude(
    folder: str,
    rows: list[tuple[str, int, bytes]],
    count: int,
    content: Content,
    job: str,
    fingerprint: str,
    *,
    name: str = "embedding-bags",
    tag: str = "",
) -> None:
    """Writes dense weights and job beside files of rows (name, bytes, SHA-256) that are there; the manifest last."""
    target = NativeFolder(folder, _TIMEOUT)
    dense, extra = _tagged(DENSE, tag), _tagged(EXTRA, tag)
    # The job last: it has one name, and is the same in most saves of a folder.
    own = {dense: content.dense, **({extra: content.packed} if content.packed else {}), JOB: job.encode()}
    files = [{"name": file, "bytes": size, "sha256": bytes(sha256).hex()} for file, size, sha256 in rows]
    for file, data in own.items():
        target.write(file, data)
        files.append({"name": file, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()})
    from . import __version__

    keys: dict[str, Any] = {
        "manifest_sha256": _NO_SEAL,
        "format": FORMAT,
        "job": name,
        "fingerprint": fingerprint,
        "release": __version__,
        "outcome": "finished",
        "steps": content.steps,
        "samples": content.samples,
        "next_step": content.step,
        "dense": dense,
        "extra": extra if content.packed else None,
        "row_files": [name for name, _, _ in rows],
        "rows": count,
        "files": files,
        "evaluation": None,
        "validation": None,
    }
    text = json.dumps(keys, indent=2).encode()
    target.write(MANIFEST, text.replace(_NO_SEAL.encode(), _seal(text, _NO_SEAL).encode(), 1))


@dataclass(frozen=True)
class Content:
    """What a save has beside rows and job."""

    steps: int
    samples: int
    #: The number of the next step. Steps that were dropped count.
    step: int
    #: The dense weights, as safetensors.
    dense: bytes
    #: What else a program saves, as ``torch.save`` writes it; empty without it.
    packed: bytes = b""

    def state(self) -> dict[str, Tensor]:
        """The dense weights by name."""
        import safetensors.torch

        return dict(safetensors.torch.load(self.dense))

    def extra(self) -> Any:
        """What else a program has saved. Nothing of it is run: ``weights_only``."""
        import torch

        return torch.load(io.BytesIO(self.packed), weights_only=True) if self.packed else None

    def pack(self) -> bytes:
        """As bytes, for the other ranks."""
        return _HEAD.pack(self.steps, self.samples, self.step, len(self.dense)) + self.dense + self.packed

    @staticmethod
    def unpack(packed: bytes) -> Content:
        """From what :meth:`pack` has made."""
        steps, samples, step, size = _HEAD.unpack_from(packed)
        rest = packed[_HEAD.size :]
        return Content(steps, samples, step, rest[:size], rest[size:])


def dense_bytes(state: Mapping[str, Tensor]) -> bytes:
    """Weights as safetensors. Tied ones are written once for each name."""
    import safetensors.torch

    return bytes(safetensors.torch.save({name: tensor.detach().cpu().contiguous().clone() for name, tensor in state.items()}))


def extra_bytes(extra: Any) -> bytes:
    """What else a program saves; refused if a load would refuse it.

    Raises:
        TypeError: It has objects of other kinds than tensors, numbers, texts, lists and dicts.
    """
    if extra is None:
        return b""
    import torch

    file = io.BytesIO()
    try:
        torch.save(extra, file)
        torch.load(io.BytesIO(file.getvalue()), weights_only=True)
    except Exception as error:
        raise TypeError(f"extra has more than tensors, numbers, texts, lists and dicts: {str(error).splitlines()[0]}") from None
    return file.getvalue()


def check_fits(folder: str, saved: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> None:
    """Compares names and shapes of weights, before any row is replaced.

    Raises:
        ZagrosError: The network is another one.
    """
    for name in sorted(saved.keys() | own.keys()):
        there, here = (list(state[name].shape) if name in state else None for state in (saved, own))
        if there != here:
            raise ZagrosError(f"{folder} has the weight {name!r} with the shape {there}, and dense with {here} (None: not at all); give the network that was saved")


def place(folder: str | os.PathLike[str]) -> str:
    """The folder under a name that servers know, too."""
    text = os.fspath(folder)
    return text.rstrip("/") if "://" in text else str(pathlib.Path(text).absolute())


def read(folder: str) -> Content:
    """What a save has beside its rows."""
    manifest = open_manifest(folder)
    extra = manifest.keys.get("extra")
    step = int(manifest.keys.get("next_step", manifest.steps))
    return Content(manifest.steps, manifest.samples, step, manifest.file(manifest.keys["dense"]), manifest.file(extra) if extra else b"")


def load_rows(session: NativeSession, folder: str) -> bytes:
    """Has the servers load the rows."""
    manifest = open_manifest(folder)
    loaded = session.load(manifest.place, manifest.row_files())
    if loaded != manifest.keys["rows"]:
        raise ZagrosError(f"{manifest.keys['rows']} rows were saved, but the embedding servers took {loaded}; is a file missing?")
    return b""


def _seal(text: bytes, now: str) -> str:
    return hashlib.sha256(text.replace(now.encode(), _NO_SEAL.encode(), 1)).hexdigest()
