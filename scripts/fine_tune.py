#!/usr/bin/env python3
"""Fine-tuning against training from scratch, on 5 % of a shifted set, over seeds: a table of AUC and log loss on the rest of it.

    scripts/fine_tune.py --zagros target/release/zagros --folder /tmp/fine-tune [--movielens data/movielens] [--seeds 1 2 3 4 5]

`generated`: a teacher of users, items, countries, hours and two numbers. In the shifted set 3 of 10 items have other effects, all hours have,
and a fifth of the rows are of users and items that the base set does not have. `movielens` (the folder has train.csv.gz, valid.csv.gz and
test.csv.gz): the base set is the earlier 7 of 10 ratings, the shifted set the later ones, most of them by users who were not there before.

Each seed draws the data, the 5 %, and what is random in training. Both ways of training have the same job, stop early by a tenth of the 5 %, and
are scored on rows of the shifted set that no training saw. The standard library suffices.
"""

import argparse
import csv
import gzip
import json
import math
import pathlib
import random
import statistics
import subprocess
import sys

JOB = """
name = "fine-tune"
[data]
format = "delimited"
train = "base.csv"
test = "shifted-test.csv"
[features]
label = "clicked"
{features}
[embedding]
dim = 8
[model]
kind = "ffnn"
hidden = [64, 32]
[train]
batch_size = {batch}
"""
GENERATED = 'numeric = ["x1", "x2"]\ncategorical = ["user", "item", "country", "hour"]'
MOVIELENS = (
    'numeric = [{ column = "year", standardise = true }]\n'
    'categorical = ["user_id", "movie_id", { column = "genres", separator = "|" }, { column = "tags", separator = "|", pooling = "mean" }]'
)
SHARE = 0.05


class Teacher:
    """What a click depends on; the shifted one differs from the base one in a part of it."""

    USERS, ITEMS, COUNTRIES, RANK = 2000, 1000, 30, 4

    def __init__(self, draw):
        vector = lambda: [draw.gauss(0, 0.8) for _ in range(self.RANK)]
        # A fifth more of each, which the base set does not have.
        self.users = [(draw.gauss(0, 0.7), vector()) for _ in range(self.USERS * 6 // 5)]
        self.items = [(draw.gauss(0, 0.7), vector()) for _ in range(self.ITEMS * 6 // 5)]
        self.countries = [draw.gauss(0, 0.6) for _ in range(self.COUNTRIES)]
        self.hours = [draw.gauss(0, 0.4) for _ in range(24)]
        self.numbers = [draw.gauss(0, 0.5) for _ in range(2)]
        self.new = 0.0

    def shift(self, draw):
        """Other effects of 3 in 10 items and of all hours, and new users and items."""
        changed = lambda item: (draw.gauss(0, 0.7), item[1]) if draw.random() < 0.3 else item
        self.items = [changed(item) for item in self.items]
        self.hours = [draw.gauss(0, 0.4) for _ in range(24)]
        self.new = 0.2

    def pick(self, draw, known):
        if draw.random() < self.new:
            return known + draw.randrange(known // 5)
        # Some are far more frequent than others.
        return min(int(known * draw.random() ** 2), known - 1)

    def row(self, draw):
        user, item = self.pick(draw, self.USERS), self.pick(draw, self.ITEMS)
        country, hour = draw.randrange(self.COUNTRIES), draw.randrange(24)
        numbers = [draw.gauss(0, 1), draw.gauss(0, 1)]
        (of_user, left), (of_item, right) = self.users[user], self.items[item]
        logit = -1 + of_user + of_item + self.countries[country] + self.hours[hour]
        logit += sum(a * b for a, b in zip(left, right)) + sum(a * b for a, b in zip(self.numbers, numbers))
        clicked = int(draw.random() < 1 / (1 + math.exp(-logit)))
        return [clicked, f"{numbers[0]:.4f}", f"{numbers[1]:.4f}", f"u{user}", f"i{item}", f"c{country}", f"h{hour}"]


def generated(folder, seed, _):
    """Writes the base set, 5 % of a shifted set, and the part of it that is scored."""
    draw = random.Random(seed)
    teacher = Teacher(draw)
    head = ["clicked", "x1", "x2", "user", "item", "country", "hour"]
    write(folder / "base.csv", head, (teacher.row(draw) for _ in range(300_000)))
    teacher.shift(draw)
    write(folder / "tune.csv", head, (teacher.row(draw) for _ in range(round(SHARE * 100_000))))
    write(folder / "shifted-test.csv", head, (teacher.row(draw) for _ in range(50_000)))


def movielens(folder, seed, source):
    """The earlier ratings, 5 % of the later ones, and the rest of those."""
    rows = []
    for part in ("train", "valid", "test"):
        with gzip.open(source / f"{part}.csv.gz", "rt", newline="") as file:
            head, *found = list(csv.reader(file))
        rows += found
    rows.sort(key=lambda row: (int(row[head.index("timestamp")]), row))
    base, later = rows[: len(rows) * 7 // 10], rows[len(rows) * 7 // 10 :]
    random.Random(seed).shuffle(later)
    few = round(SHARE * len(later))
    write(folder / "base.csv", head, base)
    write(folder / "tune.csv", head, later[:few])
    write(folder / "shifted-test.csv", head, later[few:])


def write(path, head, rows):
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([head, *rows])


def train(args, folder, name, seed, changes, start=None):
    """Trains, and gives the run's folder with its measures on the shifted set."""
    sets = [f'name="{name}"', f"train.seed={seed}", f"output.folder={json.dumps(str(folder / 'runs'))}", *changes, *args.set]
    command = [args.zagros, "train", folder / "job.toml", "--fresh", "--quiet"]
    command += [word for key in sets for word in ("--set", key)] + (["--from", start] if start else [])
    done = subprocess.run([*map(str, command)], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}:\n{done.stdout}{done.stderr}")
    run = max((folder / "runs").glob(f"{name}-*/summary.json"), key=lambda path: path.stat().st_mtime)
    measured = json.loads(run.read_text())["evaluation"]
    return run.parent, (measured["auc"], measured["logloss"])


def seed_of(args, kind, seed):
    """The measures of the base model as it is, of a run from scratch and of one from the base model."""
    folder = args.folder / f"{kind}-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    make, features, batch, source = KINDS[kind]
    make(folder, seed, getattr(args, source) if source else None)
    (folder / "job.toml").write_text(JOB.format(features=features, batch=batch))
    base, as_it_is = train(args, folder, "base", seed, [])
    steps = max(1, round(0.9 * sum(1 for _ in (folder / "tune.csv").open()) / 128))
    tune = [f"data.train={json.dumps(str(folder / 'tune.csv'))}", "data.validation_share=0.1", "train.batch_size=128", "train.epochs=30", f"train.evaluate_every={steps}"]
    tune += ['train.early_stop={ metric = "logloss", patience = 4 }']
    _, scratch = train(args, folder, "scratch", seed, tune)
    _, tuned = train(args, folder, "tuned", seed, tune, base)
    return {"as it is": as_it_is, "from scratch": scratch, "fine-tuned": tuned}


KINDS = {"generated": (generated, GENERATED, 256, None), "movielens": (movielens, MOVIELENS, 256, "movielens")}


def report(kind, seeds, rows):
    print(f"\n{kind}: AUC / log loss on the rest of the shifted set")
    names = list(rows[0])
    print("| seed | " + " | ".join(names) + " |\n" + "|---" * (len(names) + 1) + "|", flush=True)
    for seed, row in zip(seeds, rows):
        print(f"| {seed} | " + " | ".join(f"{auc:.4f} / {loss:.4f}" for auc, loss in row.values()) + " |")
    for measure, name in ((0, "AUC"), (1, "log loss")):
        differences = [row["fine-tuned"][measure] - row["from scratch"][measure] for row in rows]
        deviation = statistics.stdev(differences) if len(rows) > 1 else float("nan")
        print(f"fine-tuned − from scratch, {name}: {statistics.mean(differences):+.4f}, deviation over seeds {deviation:.4f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--zagros", default="target/release/zagros")
    parser.add_argument("--folder", default="fine-tune", type=pathlib.Path)
    parser.add_argument("--movielens", type=pathlib.Path, help="folder of the MovieLens files; without it, generated data alone")
    parser.add_argument("--seeds", nargs="+", default=[1, 2, 3, 4, 5], type=int)
    parser.add_argument("--only", choices=KINDS)
    parser.add_argument("--set", action="append", default=[])
    args = parser.parse_args()
    args.folder = args.folder.resolve()
    kinds = [kind for kind in KINDS if args.only in (None, kind) and (kind != "movielens" or args.movielens)]
    for kind in kinds:
        report(kind, args.seeds, [seed_of(args, kind, seed) for seed in args.seeds])


if __name__ == "__main__":
    main()
