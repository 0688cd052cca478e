#!/usr/bin/env python3
"""The best learning rate of each width, with µP and without it.

    scripts/mup_transfer.py PROGRAM [--widths 64,128,256,512,1024] [--rows 40000] [--rates=-12,-4]

Trains a feed-forward network with three hidden layers of each width and each rate, for one epoch and with the same seed, and prints the mean squared error
of the test part. The label is the output of a fixed network over 16 numbers. With µP the base width is 64, so both schemes begin with the same network.
"""

import argparse
import json
import math
import pathlib
import random
import subprocess
import sys
import tempfile

NUMBERS = 16
JOB = """
[data]
format = "delimited"
train = "train.csv"
test = "test.csv"
header = true
[features]
label = { column = "y", kind = "regression" }
numeric = [NUMERIC]
categorical = ["c"]
[embedding]
dim = 1
[model]
kind = "ffnn"
[train]
batch_size = 128
mode = "sync"
threads = 1
[output]
save_model = false
[checkpoint]
keep = 0
"""


def teacher(chance):
    """A function of the numbers: two layers of tanh, with an output of deviation about 1."""
    def layer(inputs, outputs, scale):
        return [[chance.gauss(0, scale / math.sqrt(inputs)) for _ in range(inputs)] for _ in range(outputs)]

    first, second, last = layer(NUMBERS, 24, 2.0), layer(24, 24, 2.0), layer(24, 1, 2.0)
    dot = lambda rows, values: [sum(a * b for a, b in zip(row, values)) for row in rows]
    tanh = lambda values: [math.tanh(value) for value in values]
    return lambda numbers: dot(last, tanh(dot(second, tanh(dot(first, numbers)))))[0]


def generate(folder, rows, test_rows):
    chance = random.Random(1)
    label = teacher(chance)
    names = [f"x{index}" for index in range(NUMBERS)]
    for name, count in [("train.csv", rows), ("test.csv", test_rows)]:
        lines = [",".join(["y", "c", *names])]
        for _ in range(count):
            numbers = [chance.gauss(0, 1) for _ in range(NUMBERS)]
            lines.append(",".join([f"{label(numbers):.5f}", "a", *(f"{number:.4f}" for number in numbers)]))
        (folder / name).write_text("\n".join(lines) + "\n")
    numeric = ", ".join(f'"{name}"' for name in names)
    (folder / "job.toml").write_text(JOB.replace("NUMERIC", numeric))


def loss(program, folder, width, rate, base):
    name = f"w{width}-{base}"
    sets = [f"model.hidden=[{width},{width},{width}]", f"model.mup_base_width={base}", f"optimizer.lr={rate}"]
    sets.append(f"name={name}")
    command = [program, "train", "job.toml", "--fresh", "--quiet"] + [word for key in sets for word in ("--set", key)]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if ran.returncode == 5:
        return float("inf")
    if ran.returncode != 0:
        sys.exit(ran.stderr)
    (run,) = sorted((folder / "runs").glob(f"{name}-*"))[-1:]
    summary = json.loads((run / "summary.json").read_text())
    subprocess.run(["rm", "-r", str(run)], check=True)
    return summary["evaluation"]["mse"]


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("program")
    arguments.add_argument("--widths", default="64,128,256,512,1024")
    arguments.add_argument("--rows", default="40000")
    arguments.add_argument("--rates", default="-12,-4", help="powers of two, first and last")
    given = arguments.parse_args()
    program = str(pathlib.Path(given.program).resolve())
    first, last = map(int, given.rates.split(","))
    powers = range(first, last + 1)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        generate(folder, int(given.rows), 5000)
        print("| scheme | width | best rate | " + " | ".join(f"2^{power}" for power in powers) + " |")
        print("|---|---|---|" + "---|" * len(powers), flush=True)
        for scheme, base in [("µP", 64), ("standard", 0)]:
            for width in map(int, given.widths.split(",")):
                losses = [loss(program, folder, width, 2.0**power, base) for power in powers]
                best = powers[losses.index(min(losses))]
                row = " | ".join(f"{value:.4f}" for value in losses)
                print(f"| {scheme} | {width} | 2^{best} | {row} |", flush=True)


main()
