//! The job file through the public functions: messages, shipped examples, and the schema.

use std::fs;
use std::path::{Path, PathBuf};

use miette::{GraphicalReportHandler, GraphicalTheme};
use zagros_job::{HeldOutRows, Job, JobErrors, Overrides, Scaling};

fn errors(text: &str, sets: &[&str]) -> JobErrors {
    Job::parse(text, Path::new("job.toml"), &Overrides::sets(sets.iter().copied())).unwrap_err()
}

/// The text on a terminal without colours.
fn rendered(text: &str, sets: &[&str]) -> String {
    let mut page = String::new();
    let handler = GraphicalReportHandler::new_themed(GraphicalTheme::none()).with_width(100);
    handler.render_report(&mut page, &errors(text, sets)).unwrap();
    page.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

/// The lines of a log, without the headline.
fn lines(text: &str) -> Vec<String> {
    errors(text, &[]).plain_text().lines().skip(1).map(str::to_owned).collect()
}

const GOOD: &str = "[data]\nformat = 'criteo'\ntrain = 'train.txt'\n";

const DELIMITED: &str = "[data]\nformat = 'delimited'\ntrain = 'train.csv'\ncolumns = ['y', 'age', 'user', 'item']\n";

#[test]
fn all_problems_of_a_file_are_shown_with_their_lines() {
    let text = r#"
[data]
format = "criteo"
train = "train.txt"
max_bad_rows = -1

[train]
batchsize = 512
mode = "hybird"
epochs = "two"

[model]
kind = "dlrm"
bottom = [64, 0]
"#;
    insta::assert_snapshot!(rendered(text, &[]));
}

#[test]
fn a_wrong_setting_points_at_the_argument() {
    insta::assert_snapshot!(rendered(GOOD, &["train.batch_sise=512", "embedding.dim=0"]));
}

#[test]
fn text_that_is_not_toml_is_pointed_at() {
    insta::assert_snapshot!(rendered("[data]\nformat = \"criteo\ntrain = 3 3\n", &[]));
}

#[test]
fn a_missing_key_is_named_at_its_table() {
    let expected = ["job.toml:1:1: missing key `data`; `data` is a table. Where samples come from."];
    assert_eq!(lines(""), expected);
    let found = lines("# a job\n[train]\n[data]\ntrain = 'x'\n");
    assert_eq!(found.len(), 1);
    assert!(found[0].starts_with("job.toml:3:2: missing key `data.format`; `format` is one of"), "{found:?}");
}

#[test]
fn types_and_ranges_say_what_was_expected() {
    let text = format!(
        "{GOOD}test = 1979-05-27\n[embedding]\ndim = 16.0\ninit = 'zero'\noptimizer = {{ lr = nan }}\n\
        [cluster]\nserver_addresses = []\nlease_seconds = 0\n[tables]\nC1 = 3\n"
    );
    let expected = [
        "job.toml:4:8: `data.test` is a date, expected text or a list, each item text; write text in quotes: \"1979-05-27\"",
        "job.toml:6:7: `embedding.dim` is a number, expected an integer from 1 to 4096",
        "job.toml:7:8: `embedding.init` is text, expected a table with kind \"zero\" or \"uniform\" or \"normal\" or \"truncated_normal\" or \"xavier\" or \"constant\"",
        "job.toml:8:20: `embedding.optimizer.lr` is out of range, expected a number from 1e-12 to 1000",
        "job.toml:10:20: `cluster.server_addresses` is out of range, expected at least 1 item",
        "job.toml:11:17: `cluster.lease_seconds` is out of range, expected a number above 0 and up to 86400",
        "job.toml:13:6: `tables.C1` is an integer, expected a table",
    ];
    assert_eq!(lines(&text), expected);
}

#[test]
fn a_kind_decides_the_other_keys() {
    let text = format!("{GOOD}[model]\nkind = 'ffnn'\nbottom = [8]\n[optimizer]\nmomentum = 0.9\n");
    let expected = [
        "job.toml:6:1: unknown key `model.bottom`; the keys here are `hidden`, `dropout`, `size`, `size_embeddings`, `mup_base_width`",
        "job.toml:8:1: unknown key `optimizer.momentum`; the keys here are `lr`, `weight_decay`",
    ];
    assert_eq!(lines(&text), expected);
}

#[test]
fn keys_of_one_format_are_refused_in_the_other() {
    let text = format!("{GOOD}delimiter = ';'\ntest = 'a'\ntest_fraction = 0.5\n[features]\nlabel = 'I1'\n");
    let expected = [
        "job.toml:4:13: `data.delimiter` has no meaning with format \"criteo\"; Criteo's layout is fixed; remove the key, or use format = \"delimited\"",
        "job.toml:6:17: `data.test` and `data.test_fraction` exclude each other; keep one of them",
        "job.toml:7:1: the label \"I1\" is also a numeric feature; remove it: a model that sees the label learns nothing else",
        "job.toml:8:9: the label of Criteo's layout is \"label\", not \"I1\"; remove the key",
    ];
    assert_eq!(lines(&text), expected);
}

#[test]
fn features_refer_to_columns_and_tables_that_exist() {
    let text = format!(
        "{DELIMITED}[features]\nlabel = {{ column = 'y', negative = ['0', '1'] }}\nnumeric = ['agee', 'age', 'age']\n\
        categorical = [{{ column = 'user', table = 'usr' }}, {{ column = 'item', dim = 8, pooling = 'sum' }}, 'y']\n\
        [tables]\nusers = {{}}\nitem = {{ dim = 4 }}\n"
    );
    let expected = [
        "job.toml:6:42: label text \"1\" is both positive and negative; list each text once",
        "job.toml:7:12: no column is named \"agee\"; did you mean \"age\"?",
        "job.toml:7:27: column \"age\" is a numeric feature twice; remove one of the two, or give it another `name`",
        "job.toml:8:43: no table is named \"usr\"; did you mean \"user\"?",
        "job.toml:8:77: feature \"item\" asks for dim 8, its table \"item\" has 4; features that share a table share its dim",
        "job.toml:8:90: pooling of a single value has no meaning; give a `separator`, or remove `pooling`",
        "job.toml:8:99: the label \"y\" is also a categorical feature; remove it: a model that sees the label learns nothing else",
        "job.toml:10:9: no feature uses the table \"users\"; did you mean \"user\"?",
    ];
    let found: Vec<String> = lines(&text).into_iter().filter(|line| !line.contains("DLRM")).collect();
    assert_eq!(found, expected);
}

#[test]
fn dims_must_fit_the_model() {
    let text = format!(
        "{DELIMITED}[features]\nlabel = 'y'\ncategorical = ['user', {{ column = 'item', dim = 8 }}]\n[model]\nkind = 'dlrm'\n"
    );
    let expected = [
        "job.toml:7:49: a DLRM needs tables of one dim: \"item\" has 8, the other one has 16; give all tables the same `dim`, or use [model] kind = \"ffnn\"",
    ];
    assert_eq!(lines(&text), expected);
    let one = format!("{DELIMITED}[features]\nlabel = 'y'\ncategorical = ['user']\n[model]\nkind = 'dlrm'\n");
    let expected = [
        "job.toml:9:8: a DLRM multiplies features with each other, and there is one; add a feature, or use [model] kind = \"ffnn\"",
    ];
    assert_eq!(lines(&one), expected);
}

#[test]
fn a_delimited_file_needs_names_and_a_separator() {
    let text = "[data]\nformat = 'delimited'\ntrain = []\nheader = false\ndelimiter = '||'\ncomment = ''\n";
    let expected = [
        "job.toml:1:1: missing key `features.label`; name the column to learn: label = \"clicked\"",
        "job.toml:1:1: no categorical feature: there is nothing to embed; list at least one column under `categorical`",
        "job.toml:3:9: `data.train` names no file; name at least one file",
        "job.toml:4:10: without a header the columns have no names; list `columns` in order, or set `header = true` if files start with a line of names",
        "job.toml:5:13: `data.delimiter` must be one ASCII character, no quote and no line end; for example \",\" or \"\\t\"",
        "job.toml:6:11: `data.comment` is empty: every line would be skipped; remove the key if there are no comments",
    ];
    assert_eq!(lines(text), expected);
    let twice =
        lines(&format!("{}[features]\nlabel = 'y'\ncategorical = ['y']\n", DELIMITED.replace("'user'", "'age'")));
    assert!(twice[1].starts_with("job.toml:4:24: column \"age\" is listed twice"), "{twice:#?}");
}

#[test]
fn a_cluster_can_be_bound_and_shared() {
    let text = format!(
        "{GOOD}[train]\nmode = 'sync'\nstaleness = 2\n[cluster]\nservers = 3\nbuckets = 2\ncoordinator = 'here'\n\
        server_addresses = ['a:1', 'a:1']\nadmin = ':0'\n"
    );
    let expected = [
        "job.toml:6:13: mode \"sync\" allows no staleness; set it to 0 or remove it, or use mode = \"hybrid\"",
        "job.toml:9:11: 3 servers cannot share 2 buckets; have at least one bucket per server",
        "job.toml:10:15: `cluster.coordinator` is not an address: \"here\"; write host:port, for example 127.0.0.1:7700 or [::1]:7700",
        "job.toml:11:20: 2 addresses for 3 servers; list one address per server; or a single one with port 0, or 0.0.0.0:PORT if each has its own host",
        "job.toml:11:28: two servers cannot both listen on a:1; give each its own port",
        "job.toml:12:9: `cluster.admin` is not an address: \":0\"; write host:port, for example 127.0.0.1:7700 or [::1]:7700",
    ];
    assert_eq!(lines(&text), expected);
}

#[test]
fn files_that_cannot_be_job_files_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let load = |path: &Path| Job::load(path, &Overrides::none()).unwrap_err().plain_text();
    let missing = load(&folder.path().join("none.toml"));
    assert!(missing.contains("none.toml: No such file"), "{missing}");
    assert!(load(folder.path()).contains("cannot read job file"));
    let latin = folder.path().join("latin.toml");
    std::fs::write(&latin, b"name = 'a'\n# caf\xe9\n").unwrap();
    assert!(load(&latin).contains("latin.toml:2: not UTF-8"), "{}", load(&latin));
    let large = folder.path().join("train.txt");
    std::fs::File::create(&large).unwrap().set_len(5 << 20).unwrap();
    assert!(load(&large).contains("is not a job file: it has 5242880 bytes"), "{}", load(&large));
}

#[test]
fn a_value_whose_brackets_or_quotes_are_missing_is_asked_for_as_toml() {
    for (key, set) in [("model", "model={kind=dcnv2}"), ("model.bottom", "model.bottom=64,32")] {
        let page = errors(GOOD, &[set]).plain_text();
        let help = format!("give the value as TOML, in single quotes for the shell, such as '{key}=[64, 32]'");
        assert!(page.contains(&help), "{page}");
    }
    let plain = errors(GOOD, &["train.mode=hybird"]).plain_text();
    assert!(plain.ends_with("did you mean \"hybrid\"?"), "{plain}");
}

/// The renderer counts columns in 16 bits.
#[test]
fn a_problem_in_a_long_line_is_shown_with_the_text_around_it() {
    for (before, after) in [(65_500, 0), (65_535, 200_000), (70_000, 0), (1_000_000, 1_000_000)] {
        let list = |items: usize| "'é', ".repeat(items / 6);
        let text = format!("[data]\nformat = 'criteo'\ntrain = [{}7, {}]\n", list(before), list(after));
        let page = rendered(&text, &[]);
        assert!(page.len() < 2_000 && page.contains("`data.train"), "{} bytes: {:.2000}", page.len(), page);
        assert!(page.contains("'é', 7"), "{page}");
    }
    let long = rendered(&format!("[data]\nformat = '{}'\n", "é".repeat(100_000)), &[]);
    assert!(long.contains("format = 'éé") && long.len() < 6_000, "{long}");
}

#[test]
fn ten_problems_are_shown_of_many() {
    let text = format!("{GOOD}[train]\n{}", (0..500).map(|index| format!("k{index} = 1\n")).collect::<String>());
    let errors = errors(&text, &[]);
    assert_eq!(errors.problems().len(), 10);
    assert_eq!(errors.to_string(), "job file job.toml has 500 problems; the first 10 are");
}

/// Regression: a million of them took half a minute.
#[test]
fn too_many_nested_brackets_are_refused() {
    for text in ["[".repeat(1_000_000), format!("a = {}", "{b = [".repeat(500_000)), "[[a]]\n".repeat(100)] {
        let errors = errors(&text, &[]).plain_text();
        assert!(!errors.is_empty());
    }
    let page = rendered(&format!("a = {}", "[".repeat(1_000_000)), &[]);
    assert!(page.contains("more than 64 nested brackets"), "{page}");
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples")
}

fn load(name: &str) -> Job {
    Job::load(&folder().join(name), &Overrides::none()).unwrap()
}

#[test]
fn every_example_loads_and_its_resolved_form_too() {
    let files = fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path());
    let files: Vec<PathBuf> =
        files.filter(|path| path.extension().is_some_and(|extension| extension == "toml")).collect();
    assert!(files.len() >= 4, "{files:?}");
    for path in files {
        let job = Job::load(&path, &Overrides::none()).unwrap();
        assert_eq!(job.name, path.file_stem().unwrap().to_string_lossy());
        let resolved = Job::parse(&job.to_toml(), Path::new("/elsewhere/resolved.toml"), &Overrides::none());
        assert_eq!(resolved.unwrap(), job);
    }
}

#[test]
fn criteo_implies_all_its_features() {
    let job = load("quickstart.toml");
    assert_eq!((job.features.numeric.len(), job.features.categorical.len(), job.tables.len()), (13, 26, 26));
    assert!(job.features.numeric.iter().all(|feature| feature.log && feature.standardise == Scaling::NO));
    assert_eq!((job.tables[25].name.as_str(), job.tables[25].dim), ("C26", 16));
    assert!(job.data_files().iter().all(|path| path.is_absolute()), "{:?}", job.data_files());
    assert!(job.data.train[0].ends_with("examples/../data/quickstart/train.txt"), "{:?}", job.data.train);
    assert_eq!(load("criteo.toml").data.test, HeldOutRows::Share(0.1));
}

#[test]
fn the_schema_is_json_that_refuses_unknown_keys() {
    let schema: serde_json::Value = serde_json::from_str(&zagros_job::schema_json()).unwrap();
    assert_eq!(schema["additionalProperties"], false);
    assert_eq!(schema["$defs"]["Train"]["properties"]["batch_size"]["maximum"], 1_048_576);
}
