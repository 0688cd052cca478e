#!/usr/bin/env python3
"""Four generated shops whose best reachable AUC is known, each a folder with train.parquet, valid.parquet, test.parquet and truth.json.

    scripts/generate_shops.py FOLDER [--rows 1000000] [--only few many tail drift] [--leaks]

Needs numpy and pyarrow. Seeds are fixed: the same arguments write the same rows. A row is an item that was shown to a user, and `click` is drawn with a
planted probability. truth.json has the AUC and the logloss of that probability on the test rows: no model can be expected to do better. The parts follow
each other in time; nine tenths of the rows are trained on, one is for validation, and the test rows come on top of them.

few:   12,000 rows; most of what can be learned are thresholds and interactions of numbers and categories, as trees learn them
many:  `--rows` rows, with users and items in proportion; tastes (products of factors of users and items), smooth numbers, a few thresholds
tail:  120,000 rows; items by Zipf's law, a dozen rows a user
drift: 150,000 rows with a column `time`; items appear, become stale and change, and the share of clicks moves

`--leaks` writes FOLDER/leaks: the shop `tail` in small, with a column more in each file that a model must not trust (see LEAKS).
"""

import argparse
import json
import pathlib
import zlib

import numpy
import pyarrow
import pyarrow.parquet

CHUNK = 1_000_000
HISTORY = 5
DAYS = 60
START = 1_780_272_000  # 2026-06-01, in seconds
DEVICES = ["phone", "desktop", "tablet", "app"]
# Scales of the parts of the logit. `skew` is the exponent of Zipf's law of users and of items.
SHOPS = {
    "few": {"rows": 12_000, "users": 900, "items": 250, "skew": (0.4, 0.7), "user": 0.2, "item": 0.3, "taste": 0.0, "rules": 1.1, "smooth": 0.3},
    "many": {"rows": None, "users": 0.04, "items": 0.01, "skew": (0.6, 0.9), "user": 0.5, "item": 0.5, "taste": 0.7, "rules": 0.35, "smooth": 0.4},
    "tail": {"rows": 120_000, "users": 13_000, "items": 15_000, "skew": (0.3, 1.0), "user": 0.5, "item": 0.6, "taste": 0.3, "rules": 0.4, "smooth": 0.4},
    "drift": {"rows": 150_000, "users": 9_000, "items": 4_000, "skew": (0.5, 0.8), "user": 0.4, "item": 0.7, "taste": 0.3, "rules": 0.4, "smooth": 0.4},
}
LEAKS = {
    "unique": "request: another text in each row",
    "noise": "campaign: one of 100,000 values, by chance",
    "filled": "order: a number in most rows with a click, empty in the others",
    "later": "dwell_seconds: written after the click, 0 without one",
    "nearly": "session_end: written after the click, wrong in 2 % of the rows",
}


def draw_zipf(random, count, size, skew):
    """Indices below `count`, of which the first are the most frequent."""
    bounds = numpy.cumsum(numpy.arange(1, count + 1) ** -float(skew))
    return numpy.searchsorted(bounds, random.random(size) * bounds[-1]).astype(numpy.int32)


def draw_fresh_items(random, days, count, skew):
    """Items by their popularity on the day of each row, which falls from the day on that they appear; and those days."""
    born = numpy.where(numpy.arange(count) % 3 == 0, -1.0, random.uniform(0, days.max() + 1, count))
    rank, items = random.permutation(count) + 1.0, numpy.empty(len(days), numpy.int32)
    for day in numpy.unique(days.astype(int)):
        rows = numpy.flatnonzero(days.astype(int) == day)
        weights = numpy.where(born < day, rank ** -float(skew) * numpy.exp((born - day) / 20), 0)
        bounds = numpy.cumsum(weights)
        items[rows] = numpy.searchsorted(bounds, random.random(len(rows)) * bounds[-1])
    return items, born


def find_history(users, items):
    """The last items that the user of each row saw in earlier rows, oldest first; -1 where there are fewer."""
    order = numpy.argsort(users, kind="stable")
    history = numpy.full((len(users), HISTORY), -1, numpy.int32)
    for back in range(1, HISTORY + 1):
        same = users[order[back:]] == users[order[:-back]]
        history[order[back:][same], HISTORY - back] = items[order[:-back][same]]
    return history


def apply_rules(random, numbers, codes, count=24):
    """A sum of random rules such as "price below 20, on a phone": each two or three conditions and a weight, of deviation 1 over the rows."""
    total = numpy.zeros(len(next(iter(numbers.values()))), numpy.float32)
    for _ in range(count):
        holds = numpy.ones(len(total), bool)
        names = random.choice([*numbers, *codes], random.integers(2, 4), replace=False)
        for name in names:
            if name in numbers:
                bound = numpy.nanquantile(numbers[name][:100_000], random.uniform(0.2, 0.8))
                holds &= numbers[name] < bound if random.random() < 0.5 else numbers[name] >= bound
            else:
                holds &= (random.random(codes[name].max() + 1) < 0.5)[codes[name]]
        total += random.choice([-1, 1]) * random.uniform(0.5, 1.5) * holds
    return total / total.std()


def scale_probability(logit, share):
    """The probabilities of logits that are moved until their mean is `share`."""
    low, high = -20.0, 20.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if (1 / (1 + numpy.exp(-logit[:CHUNK] - middle))).mean() < share else (low, middle)
    return 1 / (1 + numpy.exp(-logit - low))


def plant_shop(random, shop, size, by_time):
    """The columns of a shop as arrays, codes with their prefix, and the probability of each row."""
    count_users, count_items = shop["users"], shop["items"]
    days = numpy.sort(random.uniform(0, DAYS, size)) if by_time else None
    users = random.permutation(count_users)[draw_zipf(random, count_users, size, shop["skew"][0])].astype(numpy.int32)
    if by_time:
        items, born = draw_fresh_items(random, days, count_items, shop["skew"][1])
    else:
        items = random.permutation(count_items)[draw_zipf(random, count_items, size, shop["skew"][1])].astype(numpy.int32)
    category, brand = random.integers(0, 14, count_items), draw_zipf(random, 60, count_items, 0.7)
    list_price = numpy.exp(random.normal(random.uniform(2, 5, 14)[category], 0.5)).round(2)
    discount = numpy.where(random.random(size) < 0.6, 0.0, random.integers(1, 11, size) / 20)
    rating = numpy.where(random.random(count_items) < 0.15, numpy.nan, random.beta(6, 2, count_items).round(2) * 5)
    seconds = (START + days * 86_400).astype(numpy.int64) if by_time else None
    hour = seconds // 3600 % 24 if by_time else random.choice(24, size, p=numpy.sin(numpy.arange(24) / 24 * numpy.pi + 0.1) ** 2 / 12)
    numbers = {
        "price": (list_price[items] * (1 - discount)).round(2),
        "discount": discount,
        "rating": rating[items],
        "tenure_days": random.gamma(1.2, 300, count_users).astype(numpy.int64)[users],
        "visits": random.geometric(0.15, size),
    }
    codes = {"category": category[items], "brand": brand[items], "device": random.choice(4, size, p=[0.5, 0.3, 0.1, 0.1])}
    history = find_history(users, items)
    seen_category = numpy.where(history >= 0, category[history], -1)
    logit = shop["user"] * random.normal(0, 1, count_users)[users] + shop["item"] * random.normal(0, 1, count_items)[items]
    logit += 0.3 * random.normal(0, 1, 14)[codes["category"]] + 0.3 * random.normal(0, 1, 60)[codes["brand"]]
    for _ in range(4):
        tastes = random.normal(0, 1, count_users).astype(numpy.float32)[users] * random.normal(0, 1, count_items).astype(numpy.float32)[items]
        logit += shop["taste"] / 2 * tastes
    logit += shop["rules"] * apply_rules(random, {**numbers, "hour": hour}, codes)
    logit += shop["smooth"] * (numpy.sin((hour - 14) / 24 * 2 * numpy.pi) - 0.5 * numpy.log(numbers["price"] / 30) + 2 * discount)
    logit += 0.15 * (seen_category == codes["category"][:, None]).sum(axis=1)
    if by_time:
        slopes = random.normal(0, 0.6, count_items)[items]
        logit += slopes * numpy.maximum(days - numpy.maximum(born[items], 0), 0) / 30
        logit += 0.5 * days / DAYS + 0.3 * numpy.sin(days / 9)
    columns = {
        "user": (users, "u"), "item": (items, "i"), "category": (codes["category"], "category "), "brand": (codes["brand"], "brand "),
        "device": (codes["device"], DEVICES), **numbers, **({"time": seconds} if by_time else {"hour": hour}), "last_items": history,
        "noise_number": random.normal(0, 1, size).round(4), "noise_code": random.integers(1000, 1300, size),
        "noise_text": (random.integers(0, 4000, size), "n"),
    }
    return columns, scale_probability(logit, 0.2)


def make_array(column, rows):
    """An Arrow array of some rows: texts of codes, lists of items, or numbers, in which NaN is a missing value."""
    if isinstance(column, tuple):
        codes, names = column[0][rows], column[1]
        used, places = numpy.unique(codes, return_inverse=True)
        texts = [f"{names}{code}" if isinstance(names, str) else names[code] for code in used]
        return pyarrow.DictionaryArray.from_arrays(places.astype(numpy.int32), pyarrow.array(texts, pyarrow.string())).cast(pyarrow.string())
    if column.ndim == 2:
        there = column[rows] >= 0
        offsets = numpy.concatenate([[0], numpy.cumsum(there.sum(axis=1))]).astype(numpy.int32)
        return pyarrow.ListArray.from_arrays(offsets, make_array((column[rows][there], "i"), slice(None)))
    return pyarrow.array(column[rows], from_pandas=True)


def write_rows(path, columns, rows):
    """Rows of all columns as Parquet, a chunk at a time."""
    writer = None
    for start in range(rows.start, rows.stop, CHUNK):
        chunk = slice(start, min(start + CHUNK, rows.stop))
        table = pyarrow.table({name: make_array(column, chunk) for name, column in columns.items()})
        writer = writer or pyarrow.parquet.ParquetWriter(path, table.schema)
        writer.write_table(table, row_group_size=100_000)
    writer.close()


def measure_truth(clicks, probability):
    """AUC and logloss of the planted probability."""
    order = numpy.argsort(probability)
    ranks = numpy.empty(len(order))
    ranks[order] = numpy.arange(1, len(order) + 1)
    positive = int(clicks.sum())
    area = (ranks[clicks == 1].sum() - positive * (positive + 1) / 2) / (positive * (len(clicks) - positive))
    logloss = -numpy.log(numpy.where(clicks == 1, probability, 1 - probability)).mean()
    return {"auc": round(float(area), 5), "logloss": round(float(logloss), 5), "share": round(positive / len(clicks), 4)}


def write_shop(folder, name, rows):
    shop = {**SHOPS[name]}
    if shop["rows"] is None:
        shop.update(rows=rows, users=int(rows * shop["users"]) + 10, items=int(rows * shop["items"]) + 10)
    held = max(shop["rows"] // 10, 40_000)
    random = numpy.random.default_rng(zlib.crc32(name.encode()))
    columns, probability = plant_shop(random, shop, shop["rows"] + held, name == "drift")
    clicks = (random.random(len(probability)) < probability).astype(numpy.int8)
    columns = {"click": clicks, **columns}
    bounds = [0, shop["rows"] * 9 // 10, shop["rows"], shop["rows"] + held]
    folder.mkdir(parents=True, exist_ok=True)
    for part, start, end in zip(["train", "valid", "test"], bounds, bounds[1:]):
        write_rows(folder / f"{part}.parquet", columns, slice(start, end))
    best = measure_truth(clicks[bounds[2]:], probability[bounds[2]:])
    truth = {"rows": dict(zip(["train", "valid", "test"], map(int, numpy.diff(bounds)))), "best_on_test": best}
    (folder / "truth.json").write_text(json.dumps(truth, indent=1) + "\n")
    print(f"{name}: {shop['rows']:,} rows and {held:,} test rows; best reachable AUC {best['auc']:.4f}, logloss {best['logloss']:.4f}", flush=True)


def write_leaks(folder, size=60_000):
    random = numpy.random.default_rng(9)
    columns, probability = plant_shop(random, {**SHOPS["tail"], "users": 5_000, "items": 4_000}, size, False)
    clicks = (random.random(size) < probability).astype(numpy.int8)
    clicked = clicks == 1
    leaks = {
        "unique": ("request", (random.permutation(size), "r")),
        "noise": ("campaign", (random.integers(0, 100_000, size), "c")),
        "filled": ("order", numpy.where(clicked & (random.random(size) < 0.8), random.permutation(size) + 500_000.0, numpy.nan)),
        "later": ("dwell_seconds", numpy.where(clicked, random.lognormal(3, 1, size).round(1) + 0.1, 0.0)),
        "nearly": ("session_end", ((clicked ^ (random.random(size) < 0.02)).astype(int), ["left", "visited"])),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, (column, values) in leaks.items():
        write_rows(folder / f"{name}.parquet", {"click": clicks, **columns, column: values}, slice(0, size))
    truth = {"best_on_all_rows": measure_truth(clicks, probability), "leaks": LEAKS}
    (folder / "truth.json").write_text(json.dumps(truth, indent=1) + "\n")
    print(f"leaks: {size:,} rows in each of {len(leaks)} files; without the leak at best AUC {truth['best_on_all_rows']['auc']:.4f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the shop `many`, up to 10^7 or what memory holds")
    parser.add_argument("--only", nargs="+", choices=SHOPS, default=list(SHOPS))
    parser.add_argument("--leaks", action="store_true", help="write the files with leaks as well")
    options = parser.parse_args()
    for name in options.only:
        write_shop(options.folder / name, name, options.rows)
    if options.leaks:
        write_leaks(options.folder / "leaks")


if __name__ == "__main__":
    main()
