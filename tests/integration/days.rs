//! `zagros train --dates`: day after day, each day scored before it is learned.
//!
//! Fine-tuning: a model of a base set that is trained on with few rows of a shifted set, against the same rows from scratch.

use serde_json::{Value, json};
use zagros_tests::assert_contains;
use zagros_zip::ZipEq;

use super::fixture::Fixture;

const DAYS: [&str; 4] = ["2026-11-01", "2026-11-02", "2026-11-03", "2026-11-04"];

pub(super) fn fixture() -> Fixture {
    let fixture = Fixture::new(8_000);
    let rows = fixture.read("train.txt");
    let rows: Vec<&str> = rows.lines().collect();
    std::fs::create_dir(fixture.path("logs")).expect("a folder");
    for (day, rows) in DAYS.iter().zip_eq(rows.chunks(2_000)) {
        fixture.write(&format!("logs/{day}.txt"), rows.join("\n") + "\n");
    }
    fixture
}

fn command<'a>(folder: &'a str, dates: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    // With this seed few units are off from the start: a day has eight steps.
    let fixed =
        ["train", "job.toml", "--set=data.train=logs/{date}.txt", "--set=train.mode=sync", "--set=train.seed=3"];
    fixed.into_iter().chain([folder]).chain(["--dates", dates]).chain(more.iter().copied()).collect()
}

fn history(fixture: &Fixture, folder: &str) -> Value {
    fixture.read_json(&format!("{folder}/small.days.json"))
}

fn learned(history: &Value) -> Vec<[Value; 4]> {
    let record = |day: &&str| ["before", "samples", "steps", "rows"].map(|key| history["days"][day][key].clone());
    DAYS.iter().map(record).collect()
}

fn dense(fixture: &Fixture, history: &Value) -> Vec<u8> {
    let model = history["days"][DAYS[3]]["model"].as_str().expect("a model");
    std::fs::read(fixture.path(model).join("dense.safetensors")).expect("the network")
}

/// The folder `whole` gets all days.
pub(super) const COMMAND: &str = "train job.toml --set=data.train=logs/{date}.txt --set=train.mode=sync --set=train.seed=3 \
                                  --set=output.folder=whole --dates 2026-11-01..04";

pub(super) fn outcome(fixture: &Fixture) -> Value {
    let history = history(fixture, "whole");
    json!([learned(&history), dense(fixture, &history)])
}

pub(super) fn days_are_scored_and_gone_back_to(fixture: &Fixture) {
    let all = history(fixture, "whole");
    let auc = |day: &str| all["days"][day]["before"]["auc"].as_f64();
    assert_eq!(auc(DAYS[0]), None, "there is no model before the first day");
    assert!(auc(DAYS[3]) > auc(DAYS[1]) && auc(DAYS[3]) > Some(0.6), "{all:#}");
    let samples = DAYS.map(|day| all["days"][day]["samples"].as_u64());
    assert_eq!((samples, all["days"][DAYS[3]]["steps"].as_u64()), ([Some(2_000); 4], Some(32)));
    let again = fixture.zagros(COMMAND.split(' ')).expect(0).says(&["are done (--fresh trains them again)"]);
    again.prints(&["Each day was scored by the model of the days before it.", "small.days.html"]);
    an_earlier_day_is_gone_back_to_and_old_models_are_deleted(fixture, &all);
}

/// The folder `whole` has all days.
fn an_earlier_day_is_gone_back_to_and_old_models_are_deleted(fixture: &Fixture, first: &Value) {
    let runs = "--set=output.folder=whole";
    let second_day = first["days"][DAYS[1]]["model"].as_str().expect("a model").to_owned();
    // The last two days once more, from the model of the second.
    fixture.zagros(command(runs, "2026-11-03..04", &["--from", &second_day])).expect(0);
    let again = history(fixture, "whole");
    assert_eq!((learned(&again), dense(fixture, &again)), (learned(first), dense(fixture, first)));
    let run = |history: &Value, day: usize| history["days"][DAYS[day]]["run"].clone();
    assert_eq!(run(&again, 3), run(first, 3), "the same from the same model is done already");

    fixture.zagros(command(runs, "2026-11-01..04", &["--keep-models", "2", "--fresh"])).expect(0);
    let kept = history(fixture, "whole");
    let models = DAYS.map(|day| kept["days"][day]["model"].as_str().map(str::to_owned));
    assert_eq!(models.each_ref().map(Option::is_some), [false, false, true, true]);
    let model = models[2].as_deref().expect("kept");
    assert!(fixture.path(model).join("manifest.json").is_file());
    let gone = fixture.path(kept["days"][DAYS[0]]["run"].as_str().expect("a run")).join("model");
    assert!(!gone.join("manifest.json").exists(), "{}", gone.display());
    assert_eq!(learned(&kept), learned(first));
    // With two models gone all is still known to be done.
    let done = fixture.zagros(command(runs, "2026-11-01..04", &["--keep-models", "2"])).expect(0);
    assert!(done.stderr.contains("2026-11-01 to 2026-11-04 are done"), "{}", done.stderr);
    // Fewer are wanted, although nothing is to be trained.
    fixture.zagros(command(runs, "2026-11-01..04", &["--keep-models", "1"])).expect(0);
    let kept = history(fixture, "whole");
    let models = DAYS.map(|day| kept["days"][day]["model"].as_str().map(str::to_owned));
    assert_eq!(models.each_ref().map(Option::is_some), [false, false, false, true]);
    assert!(!fixture.path(model).join("manifest.json").exists());
    assert!(fixture.path(models[3].as_deref().expect("kept")).join("manifest.json").is_file());
}

/// The third day comes without the values of I2, and with one value of C1 alone.
#[test]
fn a_day_whose_data_changed_is_warned_of_and_the_page_shows_it() {
    let fixture = fixture();
    let broken = fixture.read("logs/2026-11-03.txt");
    let broken = broken.lines().map(|line| {
        let mut fields: Vec<&str> = line.split('\t').collect();
        (fields[2], fields[14]) = ("", "one");
        fields.join("\t") + "\n"
    });
    let broken: String = broken.collect();
    fixture.write("logs/2026-11-03.txt", broken);
    let ran = fixture.zagros(command("--set=output.folder=runs", "2026-11-01..04", &[])).expect(0);
    let expected =
        ["2026-11-03: warning: I2: 100.0 % of the rows have no value", "2026-11-03: warning: C1: 1 distinct value, "];
    let ran = ran.says(&expected);
    assert!(!ran.stderr.contains("2026-11-02: warning"), "{}", ran.stderr);
    let history = history(&fixture, "runs");
    let health = |day: usize| history["days"][DAYS[day]]["health"].clone();
    let feature = |day: usize, index: usize| health(day)["profile"]["features"][index].clone();
    assert_eq!((health(2)["profile"]["rows"].as_u64(), feature(2, 1)["column"].as_str()), (Some(2_000), Some("I2")));
    assert_eq!((feature(2, 1)["missing"].as_f64(), feature(2, 13)["distinct"].as_u64()), (Some(1.0), Some(1)));
    let drift = |day: usize, index: usize| feature(day, index)["drift"].as_f64();
    assert_eq!(drift(0, 1), None, "there is no day before the first");
    assert!(drift(1, 1) < Some(0.1) && drift(2, 1) > Some(1.0), "{:?} {:?}", drift(1, 1), drift(2, 1));
    let new_ids = |day: usize| health(day)["tables"][0]["new_ids"].as_f64();
    assert_eq!(new_ids(0), None);
    assert!(new_ids(1).is_some_and(|share| share > 0.0 && share < 1.0), "{:?}", new_ids(1));
    assert!(health(1)["tables"][0]["created"].as_u64() > Some(0), "{}", health(1)["tables"]);
    assert_eq!(health(2)["warnings"].as_array().map(Vec::is_empty), Some(false));
    let page = fixture.read("runs/small.days.html");
    assert_contains(&page, &["<h2>Warnings", "2026-11-03: I2: 100.0 %", "<h2>Features on 2026-11-04", "<h3>AUC"]);
    assert_contains(&page, &["Largest drift"]);
    assert!(ran.stdout.contains("small.days.html"), "{}", ran.stdout);
}

#[test]
fn the_next_day_goes_on_from_the_day_before_and_late_rows_are_warned_of() {
    let fixture = fixture();
    let runs = "--set=output.folder=runs";
    fixture.zagros(command(runs, "2026-11-01..02", &[])).expect(0);
    let next = fixture.zagros(command(runs, "2026-11-03", &[])).expect(0);
    assert!(next.stderr.contains("2026-11-03: starts from the model of 2026-11-02"), "{}", next.stderr);
    let history = history(&fixture, "runs");
    assert_eq!(history["days"][DAYS[2]]["from"], history["days"][DAYS[1]]["model"]);
    let late = fixture.read("logs/2026-11-01.txt") + &fixture.read("logs/2026-11-02.txt");
    fixture.write("logs/2026-11-02.txt", late);
    let done = fixture.zagros(command(runs, "2026-11-01..03", &[])).expect(0).stderr;
    assert_contains(&done, &["2026-11-01 to 2026-11-03 are done", "2026-11-02: warning: it has"]);
    assert_contains(&done, &["--fresh --dates 2026-11-02..2026-11-03"]);
    assert!(!done.contains("2026-11-01: warning: it has") && !done.contains("2026-11-03: warning: it has"), "{done}");
}

/// The second day has another hash size for one feature, and other ranges for another.
#[test]
fn a_feature_that_changes_overnight_begins_anew_and_the_others_go_on() {
    let fixture = fixture();
    let folder = "--set=output.folder=runs";
    let features = |size: u32, ranges: u32| {
        format!(
            "--set=features.categorical=['C1', {{column='C2', hash_size={size}}}, {{column='I1', name='range', buckets={ranges}}}]"
        )
    };
    let train = |dates: &str, features: &str| fixture.zagros(command(folder, dates, &[features])).expect(0);
    train("2026-11-01", &features(64, 4));
    let same = train("2026-11-02", &features(64, 4));
    assert!(!same.stderr.contains("begins empty"), "{}", same.stderr);
    let changed = train("2026-11-03", &features(128, 8));
    for table in ["C2", "range"] {
        let line = format!("table `{table}` begins empty: feature `{table}` makes its ids otherwise than in the model");
        assert!(changed.stderr.contains(&line), "no {line} in {}", changed.stderr);
    }
    assert!(!changed.stderr.contains("table `C1`"), "{}", changed.stderr);
    let history = history(&fixture, "runs");
    let job = fixture.read(&format!("{}/job.toml", history["days"][DAYS[2]]["model"].as_str().expect("a model")));
    assert!(job.contains("quantiles = 8"), "edges are fitted anew: {job}");
}

#[test]
fn paths_without_a_day_and_files_that_are_not_there_are_refused() {
    let fixture = fixture();
    let every = ["train", "job.toml", "--dates", "2026-11-01..02"];
    fixture.zagros(every).expect(2).says(&["is the same for every day", "put {date} into it"]);
    let ended = fixture.zagros(["train", "job.toml", "--dates", "2026-11-02..01"]).expect(2);
    ended.says(&["2026-11-01 is before 2026-11-02"]);
    // Times are those of column I1 here: any number will do.
    let by_time = ["--set=data.time_column=I1", "--set=data.validation_from=3"];
    let by_time = fixture.zagros(command("--set=output.folder=runs", "2026-11-01..02", &by_time));
    by_time.expect(2).says(&["one time for all days of --dates", "leave them and `data.time_column` out"]);
    fixture.zagros(command("--set=output.folder=runs", "2026-11-04..05", &[])).expect(3).says(&["2026-11-05.txt"]);
    assert!(history(&fixture, "runs")["days"]["2026-11-04"]["model"].is_string(), "the first day stays done");
    fixture.zagros(["train", "job.toml", "--from", "nowhere"]).expect(3).says(&["nowhere does not exist"]);
}

/// Users and items of the base set. The shifted set has a quarter more of each.
const KNOWN: u64 = 200;
const JOB: &str = r#"
name = "tune"
[data]
format = "delimited"
train = "base.csv"
test = "test.csv"
threads = 1
[features]
label = "clicked"
categorical = ["user", "item"]
[embedding]
dim = 8
optimizer = { kind = "adagrad", lr = 0.1 }
[model]
kind = "ffnn"
hidden = [16]
[train]
mode = "sync"
batch_size = 64
threads = 1
"#;

/// Numbers that depend on a seed alone: splitmix64.
struct SeededNumbers(u64);

impl SeededNumbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// The effect of a user or an item. Three in ten items have another one in the shifted set.
fn effect(seed: u64, kind: u64, id: u64, is_shifted: bool) -> f64 {
    let is_changed = is_shifted && kind == 1 && id % 10 < 3;
    4.0 * (SeededNumbers(seed << 32 | kind << 24 | u64::from(is_changed) << 16 | id).share() - 0.5)
}

/// So many rows of the base set or the shifted set of a seed; `part` tells rows of the same set from each other.
fn rows(seed: u64, part: u64, count: usize, is_shifted: bool) -> String {
    let (mut draw, ids) = (SeededNumbers(seed * 1000 + part), if is_shifted { KNOWN * 5 / 4 } else { KNOWN });
    let mut text = "clicked,user,item\n".to_owned();
    for _ in 0..count {
        let (user, item) = (draw.below(ids), draw.below(ids));
        let logit = effect(seed, 0, user, is_shifted) + effect(seed, 1, item, is_shifted);
        let clicked = u8::from(draw.share() < 1.0 / (1.0 + (-logit).exp()));
        text += &format!("{clicked},u{user},i{item}\n");
    }
    text
}

fn measures(fixture: &Fixture) -> (f64, f64) {
    let summary = fixture.summary();
    let measure = |name: &str| summary["evaluation"][name].as_f64().unwrap_or_else(|| panic!("no {name} in {summary}"));
    (measure("auc"), measure("logloss"))
}

#[test]
fn few_rows_teach_a_model_of_other_data_more_than_they_teach_a_new_one() {
    let fixture = Fixture::new(100);
    fixture.write("job.toml", JOB);
    for seed in 1..=3 {
        fixture.write("base.csv", rows(seed, 0, 20_000, false));
        // 5 % as many.
        fixture.write("few.csv", rows(seed, 1, 1_000, true));
        fixture.write("test.csv", rows(seed, 2, 5_000, true));
        let seed = format!("train.seed={seed}");
        fixture.zagros(["train", "job.toml", "--fresh", "--set", "train.epochs=2", "--set", &seed]).expect(0);
        let (base, as_it_is) = (fixture.run_name(), measures(&fixture));
        let tune =
            ["train", "job.toml", "--fresh", "--set", "data.train=few.csv", "--set", "train.epochs=3", "--set", &seed];
        fixture.zagros(tune).expect(0);
        let scratch = measures(&fixture);
        fixture.zagros([&tune[..], &["--from", &base]].concat()).expect(0);
        let tuned = measures(&fixture);
        // Several times what seeds differ by: about .01 of AUC.
        let words = format!("{seed}: as it is {as_it_is:?}, from scratch {scratch:?}, fine-tuned {tuned:?}");
        assert!(tuned.0 > scratch.0 + 0.03 && tuned.1 < scratch.1 - 0.03, "{words}");
        assert!(tuned.0 > as_it_is.0 && tuned.1 < as_it_is.1, "{words}");
    }
}
