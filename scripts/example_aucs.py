#!/usr/bin/env python3
"""Test AUC of the shipped examples on Adult and MovieLens, with the settings that they have, by seed: a table.

    scripts/example_aucs.py --zagros target/release/zagros --data data [--seeds 1 2 3] [--only NAME ...] [--encodings] [--set KEY=VALUE ...]

`--data` has the folders adult/ and movielens/ with the files that the examples name. `--encodings` also trains each example with encoded categories
among its numeric features (docs/how-to/describe-features.md). `--set` is given to each run. Run the script before and after a change of a default.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import tomllib

EXAMPLES = pathlib.Path(__file__).parent.parent / "examples"
ADULT = {"train": "adult/adult.data", "test": "adult/adult.test"}
MOVIELENS = {"train": "movielens/train.csv.gz", "validation": "movielens/valid.csv.gz", "test": "movielens/test.csv.gz"}
SEQUENCES = {key: f"{part}.csv" for key, part in [("train", "train"), ("validation", "valid"), ("test", "test")]}
JOBS = {
    "adult": ADULT,
    "adult_two_labels": ADULT,
    "movielens": MOVIELENS,
    "movielens_finalmlp": MOVIELENS,
    "movielens_din": SEQUENCES,
}
# A column, and those that it is combined with.
ENCODED = {
    "adult": [("occupation", []), ("native_country", []), ("occupation", ["education"]), ("marital_status", ["occupation", "age"])],
    "movielens": [("user_id", []), ("movie_id", []), ("user_id", ["genres"])],
}


def value(of):
    """A value as TOML on one line."""
    if isinstance(of, dict):
        return "{ " + ", ".join(f"{key} = {value(item)}" for key, item in of.items()) + " }"
    if isinstance(of, list):
        return "[" + ", ".join(map(value, of)) + "]"
    return json.dumps(of)


def encoded(name):
    """The numeric features of an example, and encodings of the columns above: means of all, counts of single ones."""
    numeric = tomllib.loads((EXAMPLES / f"{name}.toml").read_text())["features"]["numeric"]
    for column, others in ENCODED[name.split("_")[0]]:
        for by in ["target"] if others else ["target", "count"]:
            encode = {"by": by, "with": others} if others else {"by": by}
            numeric.append({"column": column, "name": "_".join([column, *others, by]), "encode": encode})
    return f"features.numeric={value(numeric)}"


def auc(zagros, name, files, seed, sets):
    with tempfile.TemporaryDirectory() as folder:
        keys = [f"data.{key}={json.dumps(str(path))}" for key, path in files.items()]
        keys += [f"train.seed={seed}", "output.save_model=false", f"output.folder={json.dumps(folder)}", *sets]
        command = [zagros, "train", EXAMPLES / f"{name}.toml", *(part for key in keys for part in ("--set", key))]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{name}, seed {seed}:\n{done.stderr}")
        (run,) = pathlib.Path(folder).iterdir()
        return json.loads((run / "summary.json").read_text())["evaluation"]["auc"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--zagros", type=pathlib.Path, default=pathlib.Path("target/release/zagros"))
    parser.add_argument("--data", type=pathlib.Path, default=pathlib.Path("data"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--only", nargs="+", choices=JOBS, default=list(JOBS))
    parser.add_argument("--encodings", action="store_true")
    parser.add_argument("--set", action="append", default=[], dest="sets")
    options = parser.parse_args()
    print(f"| test AUC, seeds {', '.join(map(str, options.seeds))} | |\n|---|---|")
    with tempfile.TemporaryDirectory() as sequences:
        if "movielens_din" in options.only:
            script = pathlib.Path(__file__).parent / "movielens_sequences.py"
            subprocess.run([sys.executable, script, options.data / "movielens", sequences], check=True, capture_output=True)
        for name in options.only:
            folder = pathlib.Path(sequences) if name == "movielens_din" else options.data.resolve()
            files = {key: folder / file for key, file in JOBS[name].items()}
            variants = [("", [])] + ([(", encodings", [encoded(name)])] if options.encodings else [])
            for title, sets in variants:
                found = [auc(options.zagros, name, files, seed, [*options.sets, *sets]) for seed in options.seeds]
                print(f"| {name}{title} | {', '.join(f'{auc:.4f}'.lstrip('0') for auc in found)} |", flush=True)


if __name__ == "__main__":
    main()
