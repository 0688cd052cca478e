#!/usr/bin/env python3
"""Put the libtorch that the trainer links into a folder of the checkout.

The C++ libraries inside PyTorch's own wheels are what we need, and nothing else of
them: about 0.5 GB instead of a 5 GB install. Run again it does nothing; interrupted,
it starts over. The folder is named by LIBTORCH in .cargo/config.toml.

With --cuda, a second folder: what the cargo feature `nccl` is compiled and linked
with (docs/nccl.md). Not enough to run on a GPU: such a machine has libtorch's CUDA
release of its own, with cuBLAS, cuDNN and the others.
"""
import argparse
import pathlib
import platform
import shutil
import subprocess
import sys
import tempfile
import zipfile
from typing import Callable, NamedTuple

TORCH = "2.11.0"
PLATFORMS = [f"manylinux_2_{version}_x86_64" for version in (28, 25, 18, 17)] + ["manylinux2014_x86_64"]


class Folder(NamedTuple):
    """A folder below .deps, and its sources."""

    name: str
    what: str
    size: str
    wheels: list[str]
    libraries: list[str]
    is_header: Callable[[tuple[str, ...]], bool]


SLIM = Folder(
    "libtorch",
    f"libtorch {TORCH}",
    "540 MB",
    # The CUDA build of libtorch_cpu.so links these two small libraries even on a CPU.
    [f"torch=={TORCH}", "nvidia-cuda-cupti==13.0.85", "nvidia-cuda-runtime==13.0.96"],
    ["libtorch_cpu.so", "libc10.so", "libtorch.so", "libgomp.so.1", "libcupti.so.13", "libcudart.so.13"],
    lambda parts: parts[:2] == ("torch", "include"),
)
# The releases that torch's own metadata requires.
CUDA = Folder(
    "libtorch-cuda",
    f"CUDA half of libtorch {TORCH}, and NCCL",
    "730 MB",
    [
        f"torch=={TORCH}",
        "nvidia-nccl-cu13==2.28.9",
        "nvidia-cuda-runtime==13.0.96",
        "nvidia-cuda-crt==13.0.88",
        "nvidia-cuda-cccl==13.0.85",
    ],
    ["libtorch_cuda.so", "libc10_cuda.so", "libnccl.so.2", "libcudart.so.13"],
    # Of the C++ library of CUDA, only the headers that its C headers include.
    lambda parts: parts[1:3] == ("nccl", "include")
    or (parts[1:3] == ("cu13", "include") and (len(parts) == 4 or parts[3] in ("crt", "nv"))),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cuda", action="store_true", help="the folder that the cargo feature `nccl` needs")
    fetch(CUDA if parser.parse_args().cuda else SLIM)


def fetch(folder: Folder) -> None:
    root = pathlib.Path(__file__).resolve().parent.parent
    target = root / ".deps" / folder.name
    if is_complete(target):
        return
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        sys.exit(
            f"error: no prebuilt libtorch is known for {platform.system()} {platform.machine()}\n"
            f"  next: install libtorch {TORCH} by hand and set LIBTORCH to its folder"
        )
    print(f"{folder.what}: downloading about {folder.size}, once, into {target.relative_to(root)}", flush=True)
    target.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        scratch = pathlib.Path(scratch)
        unpacked = scratch / folder.name
        for wheel in folder.wheels:
            unpack(download(wheel, scratch), unpacked, folder)
        (unpacked / "build-version").write_text(TORCH + "\n")
        missing = [name for name in folder.libraries if not (unpacked / "lib" / name).exists()]
        if missing:
            sys.exit(f"error: the wheels held no {', '.join(missing)}\n  next: please report this with `pip --version`")
        shutil.rmtree(target, ignore_errors=True)
        unpacked.rename(target)
    print(f"{folder.what}: ready", flush=True)


def is_complete(target: pathlib.Path) -> bool:
    version = target / "build-version"
    return version.is_file() and version.read_text().strip() == TORCH


def download(requirement: str, folder: pathlib.Path) -> pathlib.Path:
    before = set(folder.glob("*.whl"))
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary=:all:", "--python-version", "3.12", "--implementation", "cp"]
    command += ["--abi", "cp312", "--abi", "none", "--dest", str(folder), requirement]
    for name in PLATFORMS:
        command += ["--platform", name]
    try:
        subprocess.run(command, check=True)
    except subprocess.CalledProcessError as error:
        sys.exit(
            f"error: pip could not download {requirement} (exit code {error.returncode})\n"
            "  next: check the network and pip's index settings, then run the same command again"
        )
    return next(iter(set(folder.glob("*.whl")) - before))


def unpack(wheel: pathlib.Path, target: pathlib.Path, folder: Folder) -> None:
    """Copies the needed libraries and headers of `wheel`. Its inner folders differ by package."""
    with zipfile.ZipFile(wheel) as archive:
        for info in archive.infolist():
            path = pathlib.PurePosixPath(info.filename)
            if path.name in folder.libraries:
                place = target / "lib" / path.name
            elif folder.is_header(path.parts):
                below = path.parts.index("include") + 1
                place = target / "include" / pathlib.Path(*path.parts[below:])
            else:
                continue
            if info.is_dir():
                continue
            place.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(info) as source, open(place, "wb") as sink:
                shutil.copyfileobj(source, sink, 1 << 20)
    wheel.unlink()


if __name__ == "__main__":
    main()
