#!/usr/bin/env python3
"""The work of scripts/against_lightgbm.py that needs packages: one call divides the rows, the others fit one model each and print a line of JSON.

    scripts/lightgbm_peers.py split|trees|logistic SPECIFICATION      (JSON, written by against_lightgbm.py)

Needs numpy, pyarrow, scikit-learn and lightgbm.
"""

import json
import pathlib
import sys

import numpy
import pyarrow
import pyarrow.compute as compute
import pyarrow.csv
import pyarrow.feather
import pyarrow.json
import pyarrow.parquet

PARTS = ["train", "valid", "test"]
SPLIT_SEED = 20261201
MOST_VALUES = 32  # of a column of several values that trees see as columns of 0 and 1
RAREST = 10  # rows of a category with an own weight in the logistic regression
SMOOTHING = 10  # rows that the mean of all labels counts as, as in Zagros
CRITEO = ["label", *(f"I{n}" for n in range(1, 14)), *(f"C{n}" for n in range(1, 27))]


# Rows


def read_delimited(path, data):
    with pyarrow.input_stream(path, compression="detect") as stream:
        text = stream.read()
    if comment := data.get("comment", "").encode():
        text = b"\n".join(line for line in text.split(b"\n") if not line.startswith(comment))
    criteo = data["format"] == "criteo"
    names = CRITEO if criteo else None if data.get("header", True) else data["columns"]
    missing = ["", *data.get("missing", [])]
    table = pyarrow.csv.read_csv(
        pyarrow.BufferReader(text),
        pyarrow.csv.ReadOptions(column_names=names, block_size=min(len(text) + 1, 1 << 30)),
        pyarrow.csv.ParseOptions(delimiter="\t" if criteo else data.get("delimiter", ","), quote_char=False if criteo else '"',
                                 newlines_in_values=data.get("quoted_breaks", False), invalid_row_handler=lambda _: "skip"),
        pyarrow.csv.ConvertOptions(null_values=[*missing, *(f" {text}" for text in missing)], strings_can_be_null=True,
                                   decimal_point=data.get("decimal", "."),
                                   column_types={name: pyarrow.string() for name in CRITEO if criteo and name[0] == "C"}))
    if data.get("trim"):
        for at, name in enumerate(table.column_names):
            if pyarrow.types.is_string(table[name].type):
                table = table.set_column(at, name, compute.utf8_trim_whitespace(table[name]))
    return table


def read_file(path, data):
    match data["format"]:
        case "parquet":
            return pyarrow.parquet.read_table(path)
        case "arrow":
            return pyarrow.feather.read_table(path)
        case "jsonl":
            with pyarrow.input_stream(path, compression="detect") as stream:
                return pyarrow.json.read_json(stream, pyarrow.json.ReadOptions(block_size=1 << 28))
        case _:
            return read_delimited(path, data)


def read_rows(place, data):
    """All rows of a file, of the files of a folder, or of those that a pattern matches."""
    path = pathlib.Path(place)
    files = [path] if path.is_file() else path.rglob("*") if path.is_dir() else path.parent.glob(path.name)
    tables = [read_file(str(file), data) for file in sorted(files) if file.is_file() and not file.name.startswith((".", "_"))]
    table = pyarrow.concat_tables(tables, promote_options="permissive")
    missing = pyarrow.array(data.get("missing", []), pyarrow.string())
    for at, name in enumerate(table.column_names):
        if len(missing) and pyarrow.types.is_string(table[name].type):
            found = compute.is_in(table[name], value_set=missing)
            table = table.set_column(at, name, compute.if_else(found, pyarrow.scalar(None, pyarrow.string()), table[name]))
    return table


def replace_label(table, label):
    """The table with a label of 1 and 0, without rows of another text, and how many those were."""
    text = compute.replace_substring_regex(compute.cast(table[label["column"]], pyarrow.string()), r"\.0*$", "")  # 1.0; UCI's `>50K.`
    positive, negative = (compute.is_in(text, value_set=pyarrow.array(label[key])) for key in ("positive", "negative"))
    at = table.schema.get_field_index(label["column"])
    known = table.set_column(at, label["column"], positive.cast(pyarrow.int8())).filter(compute.or_(positive, negative))
    return known, len(table) - len(known)


def cut_part(table, rows, time_column, random):
    """The table without its newest rows, or random ones, about so many; and those. Rows of one time stay together."""
    if time_column:
        times = table[time_column]
        bound = compute.equal(times, times[len(table) - rows])
        start = max(compute.index(bound, True).as_py(), 1)
        return table.slice(0, start), table.slice(start)
    chosen = numpy.zeros(len(table), bool)
    chosen[random.permutation(len(table))[:rows]] = True
    return table.filter(pyarrow.array(~chosen)), table.filter(pyarrow.array(chosen))


def split_rows(spec):
    """Writes the three parts as Parquet, for Criteo's layout as its text too: each is a given file, or a tenth of the data."""
    data, folder, time = spec["data"], pathlib.Path(spec["folder"]), spec["time_column"]
    table, unknown = replace_label(read_rows(spec["path"], data), spec["label"])
    if time:
        table = table.take(compute.sort_indices(table, [(time, "ascending")], null_placement="at_start"))
    tenth, random, parts = len(table) // 10, numpy.random.default_rng(SPLIT_SEED), {}
    for part in ("test", "valid"):
        if spec[part]:
            parts[part] = replace_label(read_rows(spec[part], data), spec["label"])[0]
        else:
            table, parts[part] = cut_part(table, tenth, time, random)
    parts["train"] = table
    counts = {}
    for part, rows in parts.items():
        pyarrow.parquet.write_table(rows, folder / f"{part}.parquet", row_group_size=50_000)
        if data["format"] == "criteo":
            options = pyarrow.csv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none")
            pyarrow.csv.write_csv(rows, folder / f"{part}.txt", options)
        share = compute.mean(rows[spec["label"]["column"]]).as_py()
        counts[part] = {"rows": len(rows), "share": round(share, 4)}
    return {"parts": counts, "skipped": unknown}


# Features


def flatten_columns(table):
    while any(pyarrow.types.is_struct(field.type) for field in table.schema):
        table = table.flatten()
    return table


def load_parts(spec):
    """The parts' tables, and their labels."""
    tables = {part: flatten_columns(pyarrow.parquet.read_table(f"{spec['folder']}/{part}.parquet")) for part in PARTS}
    return tables, {part: table[spec["label"]["column"]].to_numpy() for part, table in tables.items()}


def read_numbers(column):
    return compute.cast(column, pyarrow.float64()).to_numpy().astype(numpy.float64)


def code_texts(arrays):
    """Codes of the texts of each part: those of the training part from 0 in order of appearance, then the missing, then all others."""
    texts = {part: compute.cast(array, pyarrow.string()) for part, array in arrays.items()}
    known = compute.drop_null(compute.unique(texts["train"]))
    codes = {}
    for part, array in texts.items():
        found = compute.fill_null(compute.index_in(array, value_set=known), len(known) + 1)
        codes[part] = compute.if_else(compute.is_null(array), len(known), found).to_numpy().astype(numpy.int32)
    return codes, len(known) + 2


def split_lists(column, separator):
    """The values of cells with several, and the row of each."""
    if separator:
        column = compute.split_pattern(compute.cast(column, pyarrow.string()), separator)
    column = column.combine_chunks() if isinstance(column, pyarrow.ChunkedArray) else column
    return compute.list_flatten(column), compute.list_parent_indices(column).to_numpy()


def take_date(column, part):
    """A part of a time: a timestamp, a text of one, or seconds or milliseconds since 1970."""
    if pyarrow.types.is_string(column.type):
        column = column.cast(pyarrow.timestamp("s"))
    elif pyarrow.types.is_integer(column.type) or pyarrow.types.is_floating(column.type):
        unit = "ms" if compute.max(column).as_py() > 1e11 else "s"
        column = column.cast(pyarrow.int64()).cast(pyarrow.timestamp(unit))
    hour, day = compute.hour(column), compute.day_of_week(column)
    parts = {"hour": lambda: hour, "weekday": lambda: day, "hour_of_week": lambda: compute.add(compute.multiply(day, 24), hour)}
    return (parts.get(part) or (lambda: getattr(compute, part)(column)))()


def encode_target(codes, size, labels, random, rows):
    """Means and counts of codes, and for the training part means over the other four fifths. `rows` are the row of each code, by part."""
    prior, clicks, fold = labels["train"].mean(), labels["train"][rows["train"]], random.integers(0, 5, len(labels["train"]))[rows["train"]]
    count, total = (numpy.bincount(codes["train"], weights, size) for weights in (None, clicks))

    def smooth_means(total, count):
        return (total + SMOOTHING * prior) / (count + SMOOTHING)

    means = {part: smooth_means(total, count)[code] for part, code in codes.items()}
    for number in range(5):
        there = fold == number
        inside = [numpy.bincount(codes["train"][there], weights, size) for weights in (None, clicks[there])]
        means["train"][there] = smooth_means(total - inside[1], count - inside[0])[codes["train"][there]]
    return means, {part: numpy.log1p(count[code]) for part, code in codes.items()}


def average_rows(values, rows, length):
    with numpy.errstate(invalid="ignore"):
        return numpy.bincount(rows, values, length) / numpy.bincount(rows, minlength=length)


def tree_columns(spec, tables, labels):
    """The matrices of LightGBM by part, and which of their columns are categories."""
    features, random = spec["features"], numpy.random.default_rng(spec["seed"])
    columns, native = {part: [] for part in PARTS}, []
    lengths = {part: len(table) for part, table in tables.items()}

    def add_column(values):
        for part in PARTS:
            columns[part].append(numpy.asarray(values[part], numpy.float32))

    for name in features["numbers"]:
        add_column({part: read_numbers(table[name]) for part, table in tables.items()})
    for name, date in features["dates"]:
        add_column({part: read_numbers(take_date(table[name], date)) for part, table in tables.items()})
    every = {part: numpy.arange(length) for part, length in lengths.items()}
    for name in features["categories"]:
        codes, size = code_texts({part: table[name] for part, table in tables.items()})
        if spec["encoding"] == "target":
            means, counts = encode_target(codes, size, labels, random, every)
            add_column(means)
            add_column(counts)
        else:
            native.append(len(columns["train"]))
            add_column({part: numpy.where(code == size - 1, numpy.nan, code) for part, code in codes.items()})
    for name, separator in features["lists"].items():
        cells = {part: split_lists(table[name], separator) for part, table in tables.items()}
        rows = {part: row for part, (_, row) in cells.items()}
        codes, size = code_texts({part: values for part, (values, _) in cells.items()})
        add_column({part: numpy.bincount(row, minlength=lengths[part]) for part, row in rows.items()})
        if spec["encoding"] == "target":
            means, _ = encode_target(codes, size, labels, random, rows)
            add_column({part: average_rows(means[part], rows[part], lengths[part]) for part in PARTS})
        for code in numpy.argsort(-numpy.bincount(codes["train"], minlength=size)[:-1], kind="stable")[:MOST_VALUES]:
            add_column({part: numpy.bincount(rows[part][codes[part] == code], minlength=lengths[part]) > 0 for part in PARTS})
    return {part: numpy.column_stack(columns[part]) for part in PARTS}, native


def linear_columns(spec, tables):
    """The sparse matrices of the logistic regression: numbers standardised and by twentieths, categories that are not rare, hours."""
    from scipy import sparse

    features, blocks = spec["features"], {part: [] for part in PARTS}
    lengths = {part: len(table) for part, table in tables.items()}

    def add_codes(codes, size, rows):
        count = numpy.bincount(codes["train"], minlength=size)
        place = numpy.where(count >= RAREST, numpy.cumsum(count >= RAREST), 0)
        for part, code in codes.items():
            shape, ones = (lengths[part], place.max() + 1), numpy.ones(len(code))
            blocks[part].append(sparse.csr_matrix((ones, (rows[part], place[code])), shape))

    every = {part: numpy.arange(length) for part, length in lengths.items()}
    for name, is_long in features["numbers"].items():
        values = {part: read_numbers(table[name]) for part, table in tables.items()}
        edges = numpy.unique(numpy.nanquantile(values["train"], numpy.arange(1, 20) / 20))
        buckets = {part: numpy.where(numpy.isnan(value), len(edges) + 1, numpy.searchsorted(edges, value, "right")) for part, value in values.items()}
        add_codes(buckets, len(edges) + 2, every)
        scaled = {part: numpy.sign(value) * numpy.log1p(numpy.abs(value)) if is_long else value for part, value in values.items()}
        mean, deviation = numpy.nanmean(scaled["train"]), numpy.nanstd(scaled["train"]) or 1
        for part, value in scaled.items():
            blocks[part].append(sparse.csr_matrix(numpy.nan_to_num((value - mean) / deviation)[:, None]))
    for name, date in features["dates"]:
        add_codes(*code_texts({part: take_date(table[name], date) for part, table in tables.items()}), every)
    for name in features["categories"]:
        add_codes(*code_texts({part: table[name] for part, table in tables.items()}), every)
    for name, separator in features["lists"].items():
        cells = {part: split_lists(table[name], separator) for part, table in tables.items()}
        add_codes(*code_texts({part: values for part, (values, _) in cells.items()}), {part: row for part, (_, row) in cells.items()})
    return {part: sparse.hstack(block, format="csr") for part, block in blocks.items()}


# Models


def score_parts(labels, predict):
    from sklearn.metrics import log_loss, roc_auc_score

    scores = {part: predict(part) for part in ("valid", "test")}
    return {part: {"auc": roc_auc_score(labels[part], score), "logloss": log_loss(labels[part], score)} for part, score in scores.items()}


def fit_trees(spec):
    """LightGBM, stopped early by the AUC of the validation part."""
    import lightgbm

    tables, labels = load_parts(spec)
    matrices, native = tree_columns(spec, tables, labels)
    train = lightgbm.Dataset(matrices["train"], labels["train"], categorical_feature=native)
    valid = lightgbm.Dataset(matrices["valid"], labels["valid"], reference=train)
    fixed = {"objective": "binary", "metric": "auc", "seed": spec["seed"], "verbosity": -1}
    stop = lightgbm.early_stopping(spec["patience"], verbose=False)
    model = lightgbm.train({**fixed, **spec["parameters"]}, train, spec["rounds"], valid_sets=[valid], callbacks=[stop])
    return {**score_parts(labels, lambda part: model.predict(matrices[part])), "rounds": model.best_iteration}


def fit_logistic(spec):
    from sklearn.linear_model import LogisticRegression

    tables, labels = load_parts(spec)
    matrices = linear_columns(spec, tables)
    model = LogisticRegression(max_iter=500, **spec["parameters"]).fit(matrices["train"], labels["train"])
    return {**score_parts(labels, lambda part: model.predict_proba(matrices[part])[:, 1]), "weights": int(model.coef_.size)}


def main():
    work = {"split": split_rows, "trees": fit_trees, "logistic": fit_logistic}[sys.argv[1]]
    print(json.dumps(work(json.loads(pathlib.Path(sys.argv[2]).read_text()))))


if __name__ == "__main__":
    main()
