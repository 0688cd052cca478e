#!/usr/bin/env python3
"""Compares the peak memory that `zagros train --dry-run` predicts with that of real runs, for each network and size.

    scripts/memory_peaks.py PROGRAM [--kinds ffnn,dlrm] [--sizes 111k,1.3m,13m] [--batch 1024] [--no-save] [--streamed]

Each run trains a few steps on generated data and saves its model, unless --no-save. A size that does not fit into the available memory is left out. The
rows of the run are added to the prediction, which is without them. Ends with 1 if a prediction is more than 10 % off.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

LADDER = "111k,590k,1.3m,13m,111m,590m"
JOB = """
[data]
format = "criteo"
train = "data/train.txt"
[model]
kind = "ffnn"
"""


def available():
    lines = pathlib.Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))


def predicted(program, folder, kind, size, sets):
    """The peak that the plan of `--dry-run` names."""
    command = [program, "train", "job.toml", "--dry-run", *sets, "--set", f"model={{kind='{kind}', size='{size}'}}"]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    line = next(line for line in ran.stdout.splitlines() if line.strip().startswith("peak"))
    number, unit = line.split("about ")[1].split()[:2]
    return float(number.replace(",", "")) * {"MiB": 2**20, "GiB": 2**30, "TiB": 2**40}[unit]


def measured(program, folder, kind, size, sets):
    name = f"{kind}-{size.replace('.', '_')}"
    more = ["--set", f"model={{kind='{kind}', size='{size}'}}", "--set", f"name={name}", "--max-steps", "3"]
    command = [program, "train", "job.toml", "--fresh", "--quiet", *sets, *more]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if ran.returncode != 0:
        sys.exit(f"{kind} {size}: {ran.stderr}")
    (run,) = sorted((folder / "runs").glob(f"{name}-*"))[-1:]
    summary = json.loads((run / "summary.json").read_text())
    subprocess.run(["rm", "-r", str(run)], check=True)
    return summary["peak_rss_bytes"] - summary["table_bytes"]


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("program")
    arguments.add_argument("--kinds", default="ffnn,dlrm")
    arguments.add_argument("--sizes", default=LADDER)
    arguments.add_argument("--batch", default="1024")
    arguments.add_argument("--no-save", action="store_true")
    arguments.add_argument("--streamed", action="store_true", help="with train.weights = \"streamed\"")
    given = arguments.parse_args()
    program = str(pathlib.Path(given.program).resolve())
    sets = ["--set", f"train.batch_size={given.batch}"]
    if given.no_save:
        sets += ["--set", "output.save_model=false", "--set", "checkpoint.keep=0"]
    if given.streamed:
        sets += ["--set", "train.weights='streamed'"]
    worst = 0.0
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "job.toml").write_text(JOB)
        generate = [program, "data", "generate", "data", "--rows", "40000", "--test-rows", "100"]
        subprocess.run(generate, cwd=folder, check=True, capture_output=True)
        print("| network | size | predicted MiB | measured MiB | difference |\n|---|---|---|---|---|")
        for kind in given.kinds.split(","):
            for size in given.sizes.split(","):
                expected = predicted(program, folder, kind, size, sets)
                if expected > 0.9 * available():
                    print(f"| {kind} | {size} | {expected / 2**20:,.0f} | more than there is | |", flush=True)
                    continue
                found = measured(program, folder, kind, size, sets)
                off = expected / found - 1
                worst = max(worst, abs(off))
                print(f"| {kind} | {size} | {expected / 2**20:,.0f} | {found / 2**20:,.0f} | {off:+.1%} |", flush=True)
    sys.exit(1 if worst > 0.1 else 0)


main()
