"""Forecasts beside truths: ten small jobs on generated data, each a family and its next size.

    python3 scripts/scaling_law_jobs.py --zagros target/release/zagros --folder /tmp/scaling-jobs

A job is good if its forecast is off by at most two deviations between seeds, or by at most 15 % of the gap between the two largest
trained sizes. The table also has the errors of two simple guesses: the last value, and a line in the logarithm of the compute. Where the
command refuses a forecast, the table says so, and compares the loss that its law says all the same. The same command goes on where it was
stopped. The standard library suffices.
"""

import argparse
import json
import pathlib
import subprocess
import sys

# Seed of the data, decay of its spectrum, deviation of its logit, network.
JOBS = [
    (11, 0.3, 3.0, "ffnn"),
    (12, 0.3, 3.0, "wide_deep"),
    (13, 0.2, 3.0, "ffnn"),
    (14, 0.2, 3.0, "dlrm"),
    (15, 0.5, 3.0, "ffnn"),
    (16, 0.5, 3.0, "finalmlp"),
    (17, 0.3, 4.0, "ffnn"),
    (18, 0.3, 4.0, "wide_deep"),
    (19, 0.4, 3.0, "deepfm"),
    (20, 0.4, 3.0, "ffnn"),
]

# Factors of a row, and most of them in a term of the teacher.
FACTORS, ORDER = 8, 3

# Sizes of the family and the next one, in equal steps. Narrower networks differ more by their seeds than by their size.
SIZES, NEXT = "250,560,1250,2800", "6300"

# Small embeddings, so that the smallest networks are narrow; an average of the weights, which seeds change less than the last weights.
CHANGES = ["train.batch_size=128", "embedding.dim=4", "train.ema=0.998"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--zagros", default="target/release/zagros")
    parser.add_argument("--folder", default="scaling-law-jobs", type=pathlib.Path)
    parser.add_argument("--rows", default=600_000, type=int)
    parser.add_argument("--seeds", default=6, type=int)
    parser.add_argument("--set", action="append", default=CHANGES)
    parser.add_argument("--jobs", default=2, type=int)
    parser.add_argument("--only", default=0, type=int, help="train this job only")
    args = parser.parse_args()
    rows = [run(args, number, job) for number, job in enumerate(JOBS, 1) if args.only in (0, number)]
    report(rows)


def run(args, number, job):
    """Trains one job, and gives its row of the table."""
    seed, decay, signal, network = job
    folder = args.folder / f"job-{number}"
    data = folder / "data"
    generate = ["data", "generate", data, "--teacher", "factors", "--keep", "--rows", args.rows, "--test-rows", 50_000]
    generate += ["--seed", seed, "--decay", decay, "--signal", signal, "--factors", FACTORS, "--order", ORDER]
    call(args, generate)
    family = folder / "family"
    train = ["scaling-law", data / "job.toml", "--sizes", SIZES, "--next", NEXT, "--data", "1", "--seeds", args.seeds]
    train += ["--budget", "0s", "--jobs", args.jobs, "--folder", family, "--verify"]
    for change in [*args.set, f'model.kind="{network}"']:
        train += ["--set", change]
    call(args, train)
    found = json.loads((family / "scaling-law.json").read_text())
    kept = found["forecast"]
    row = {"number": number, "network": network, "decay": decay, "form": found["law"]["form"]}
    row["floor"] = json.loads((data / "planted.json").read_text())["irreducible_logloss"]
    row["gap"], row["last"] = gap(found["runs"])
    row["deviation"] = kept["forecast"]["seed_deviation"]
    row["forecast"] = kept["forecast"]["loss"]
    row["made"] = kept["forecast"]["decision"]["kind"] == "made"
    row["truth"] = found["verification"] or truth(args, folder, [*args.set, f'model.kind="{network}"'], NEXT, kept)
    row["bound"] = max(2 * row["deviation"], 0.15 * row["gap"])
    return row


def truth(args, folder, changes, size, kept):
    """Trains the size of a refused forecast as the family would have, and compares."""
    target = kept["forecast"]["target"]
    batch = next(int(change.split("=")[1]) for change in args.set if change.startswith("train.batch_size="))
    runs = folder / "next"
    if not list(runs.glob("*/summary.json")):
        train = ["train", folder / "data" / "job.toml", "--size", size, "--max-steps", round(target["samples"] / batch)]
        changes = [*changes, f"output.folder={json.dumps(str(runs))}", "output.save_model=false", "train.seed=1"]
        call(args, train + [word for change in changes for word in ("--set", change)])
    summary = json.loads(max(runs.glob("*/summary.json")).read_text())
    loss = summary["evaluation"]["logloss"]
    forecast = kept["forecast"]
    return {
        "loss": loss,
        "error": forecast["loss"] - loss,
        "inside": forecast["low"] <= loss <= forecast["high"],
        "last_value_error": forecast["last"] - loss,
        "line_error": forecast["line_in_log_compute"] - loss,
    }


def gap(runs):
    """Difference of the mean losses of the two largest sizes after the most samples, and the last of them."""
    most = max(run["samples"] for run in runs)
    losses = {}
    for run in runs:
        if run["samples"] == most:
            losses.setdefault(run["parameters"], []).append(run["loss"])
    before, last = [sum(losses[size]) / len(losses[size]) for size in sorted(losses)[-2:]]
    return before - last, last


def report(rows):
    head = ["job", "network", "decay", "law", "floor", "gap", "sd", "last", "forecast", "truth", "error", "bound", "good", "inside", "forecast made", "last value", "line in log C"]
    print("| " + " | ".join(head) + " |\n" + "|---" * len(head) + "|")
    good = beats = inside = made = 0
    for row in rows:
        truth = row["truth"]
        cells = [row["number"], row["network"], row["decay"], row["form"], *[f"{row[key]:.5f}" for key in ("floor", "gap", "deviation", "last", "forecast")]]
        is_good = abs(truth["error"]) <= row["bound"]
        made += row["made"]
        good += is_good
        inside += truth["inside"]
        beats += abs(truth["error"]) < min(abs(truth["last_value_error"]), abs(truth["line_error"]))
        cells += [f"{truth['loss']:.5f}", f"{truth['error']:+.5f}", f"{row['bound']:.5f}", "yes" if is_good else "no"]
        cells += ["yes" if truth["inside"] else "no", "yes" if row["made"] else "refused"]
        cells += [f"{truth['last_value_error']:+.5f}", f"{truth['line_error']:+.5f}"]
        print("| " + " | ".join(str(cell) for cell in cells) + " |")
    known = [row["truth"] for row in rows]
    print(f"\n{len(rows)} jobs, {made} forecasts, {good} good, {inside} inside their interval, {beats} better than both guesses")
    for name, key in (("forecast", "error"), ("last value", "last_value_error"), ("line in log C", "line_error")):
        print(f"mean absolute error, {name}: {sum(abs(truth[key]) for truth in known) / len(known):.5f}")


def call(args, arguments):
    done = subprocess.run([args.zagros, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, arguments))}:\n{done.stdout}")


if __name__ == "__main__":
    main()
