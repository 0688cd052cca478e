//! Fine-tuning: a model of a base set that is trained on with few rows of a shifted set, against the same rows from scratch.

use super::fixture::Fixture;

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
