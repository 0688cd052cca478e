"""Adds to each rating of MovieLens the movies that its user liked before, for networks that read sequences.

    python scripts/movielens_sequences.py FOLDER [OUTPUT]     # OUTPUT: data/movielens_sequences

FOLDER has train.csv.gz, valid.csv.gz and test.csv.gz with the columns of examples/movielens.toml. Each output file has one
column more: `history`, the ids of the movies that the user liked (clicked = 1) in training rows with an earlier timestamp, oldest
first, separated by `|`. So no row sees its own label, a later one, or a label that is held out.
"""

import bisect
import collections
import csv
import gzip
import pathlib
import sys

PARTS = ["train", "valid", "test"]
LONGEST = 200


def rows(folder, part):
    with gzip.open(folder / f"{part}.csv.gz", "rt", newline="") as file:
        return list(csv.DictReader(file))


def likes(training):
    """Of each user: the times of the likes, and the movies, both in the order of time."""
    of_user = collections.defaultdict(list)
    for row in training:
        if row["clicked"] == "1":
            of_user[row["user_id"]].append((int(row["timestamp"]), row["movie_id"]))
    return {user: tuple(zip(*sorted(liked))) for user, liked in of_user.items()}


def history(row, liked):
    times, movies = liked.get(row["user_id"], ((), ()))
    before = bisect.bisect_left(times, int(row["timestamp"]))
    return "|".join(movies[max(0, before - LONGEST) : before])


def main():
    folder, output = pathlib.Path(sys.argv[1]), pathlib.Path((sys.argv + ["data/movielens_sequences"])[2])
    output.mkdir(parents=True, exist_ok=True)
    parts = {part: rows(folder, part) for part in PARTS}
    liked = likes(parts["train"])
    for part, of_part in parts.items():
        with open(output / f"{part}.csv", "w", newline="") as file:
            writer = csv.DictWriter(file, [*of_part[0], "history"], lineterminator="\n")
            writer.writeheader()
            writer.writerows({**row, "history": history(row, liked)} for row in of_part)
        lengths = [history(row, liked).count("|") + bool(history(row, liked)) for row in of_part]
        print(f"{part}: {len(of_part)} rows, {sum(lengths) / len(lengths):.1f} liked movies before a row, {lengths.count(0)} with none")


if __name__ == "__main__":
    main()
