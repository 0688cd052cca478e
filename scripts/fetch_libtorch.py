#!/usr/bin/env python3
"""Put the libtorch that the trainer links into a folder of the checkout.

The C++ libraries inside PyTorch's own wheels are what we need, and nothing else of
them: about 0.5 GB instead of a 5 GB install. Run again it does nothing; interrupted,
it starts over. The folder is named by LIBTORCH in .cargo/config.toml.
"""
import pathlib
import platform
import shutil
import subprocess
import sys
import tempfile
import zipfile

TORCH = "2.11.0"
# The CUDA build of libtorch_cpu.so links these two small libraries even on a CPU.
WHEELS = [f"torch=={TORCH}", "nvidia-cuda-cupti==13.0.85", "nvidia-cuda-runtime==13.0.96"]
PLATFORMS = ["manylinux_2_28_x86_64", "manylinux_2_25_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64"]
LIBRARIES = ["libtorch_cpu.so", "libc10.so", "libtorch.so", "libgomp.so.1", "libcupti.so.13", "libcudart.so.13"]


def main() -> None:
    root = pathlib.Path(__file__).resolve().parent.parent
    target = root / ".deps" / "libtorch"
    if is_complete(target):
        return
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        sys.exit(
            f"error: no prebuilt libtorch is known for {platform.system()} {platform.machine()}\n"
            f"  next: install libtorch {TORCH} by hand and set LIBTORCH to its folder"
        )
    print(f"libtorch {TORCH}: downloading about 540 MB, once, into {target.relative_to(root)}", flush=True)
    target.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        scratch = pathlib.Path(scratch)
        unpacked = scratch / "libtorch"
        for wheel in WHEELS:
            unpack(download(wheel, scratch), unpacked)
        (unpacked / "build-version").write_text(TORCH + "\n")
        missing = [name for name in LIBRARIES if not (unpacked / "lib" / name).exists()]
        if missing:
            sys.exit(f"error: the wheels held no {', '.join(missing)}\n  next: please report this with `pip --version`")
        shutil.rmtree(target, ignore_errors=True)
        unpacked.rename(target)
    print(f"libtorch {TORCH}: ready", flush=True)


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


def unpack(wheel: pathlib.Path, target: pathlib.Path) -> None:
    """Copies the wanted libraries and headers of `wheel`; its folders inside differ by package."""
    with zipfile.ZipFile(wheel) as archive:
        for info in archive.infolist():
            path = pathlib.PurePosixPath(info.filename)
            if path.name in LIBRARIES:
                place = target / "lib" / path.name
            elif path.parts[:2] == ("torch", "include"):
                place = target / "include" / pathlib.Path(*path.parts[2:])
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
