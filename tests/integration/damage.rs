//! Files of checkpoints and models that are damaged, or whole and of another save: none goes unnoticed (invariant CK-4).

use std::path::{Path, PathBuf};

use serde_json::Value;
use zagros_store::{ContentDigest, hex_digits};
use zagros_zip::ZipEq;

use super::fixture::{Fixture, checkpoints, damaged, read_json};

const TRAIN: [&str; 6] = ["train", "job.toml", "--set", "train.mode=sync", "--set", "checkpoint.every_steps=20"];

/// A run that was interrupted after at least two checkpoints; these, oldest first.
fn interrupted(fixture: &Fixture) -> [PathBuf; 2] {
    fixture.start_to_checkpoint(3, [&TRAIN[..], &["--set", "train.epochs=50"]].concat()).interrupt();
    checkpoints(&fixture.run_folder()).try_into().expect("two are kept")
}

fn flip(path: &Path) -> Vec<u8> {
    let good = std::fs::read(path).expect("a file");
    std::fs::write(path, damaged(&good)).expect("it is written");
    good
}

fn step(checkpoint: &Path) -> String {
    let name = checkpoint.file_name().expect("a name").to_string_lossy().into_owned();
    name.trim_start_matches("resume-").trim_start_matches('0').to_owned()
}

const FILES: [&str; 5] =
    ["dense.safetensors", "optimizer.safetensors", "training.json", "job.toml", "rows-0-of-1.zrows"];

/// The sections leave both checkpoints as they were; the last one goes on from them.
#[test]
fn damage_to_checkpoints_is_noticed_and_a_run_goes_on_from_the_newest_intact_one() {
    let fixture = Fixture::new(20_000);
    let [older, newest] = interrupted(&fixture);
    a_damaged_or_foreign_file_is_noticed(&fixture, [&older, &newest]);
    where_none_is_intact_nothing_goes_on_and_nothing_is_tried_again(&fixture, [&older, &newest]);
    the_newest_that_is_intact_is_gone_on_from(&fixture, [&older, &newest]);
}

/// Each file once flipped, and once that of the checkpoint before, which is whole.
fn a_damaged_or_foreign_file_is_noticed(fixture: &Fixture, [older, newest]: [&Path; 2]) {
    let inspect = |arguments: &[&str], code| {
        let newest = newest.display().to_string();
        fixture.zagros([&[arguments[0], newest.as_str()], &arguments[1..]].concat()).expect(code)
    };
    inspect(&["inspect", "--verify"], 0);
    for name in FILES {
        let good = flip(&newest.join(name));
        let foreign = std::fs::read(older.join(name)).expect("a file");
        for foreign in [None, Some(foreign)] {
            if let Some(foreign) = foreign {
                // The job of both is the same.
                if foreign == good {
                    continue;
                }
                std::fs::write(newest.join(name), foreign).expect("it is written");
            }
            let verified = inspect(&["inspect", "--verify", "--json"], 3);
            let files: Vec<Value> = serde_json::from_str(&verified.stdout).expect("JSON");
            let wrong: Vec<_> = files.iter().filter(|file| !file["problem"].is_null()).collect();
            assert!(wrong.len() == 1 && wrong[0]["file"] == name, "{name}: {}", verified.stdout);
            inspect(&["inspect"], 3).says(&[name, "is not the file that was saved"]);
            // What scoring does not need is not read.
            let is_needed = !["optimizer.safetensors", "training.json"].contains(&name);
            let scored = inspect(&["eval"], if is_needed { 3 } else { 0 });
            assert!(!is_needed || scored.stderr.contains(name), "{}", scored.stderr);
        }
        std::fs::write(newest.join(name), good).expect("it is written");
    }
    inspect(&["inspect", "--verify"], 0);
}

fn the_newest_that_is_intact_is_gone_on_from(fixture: &Fixture, [older, newest]: [&Path; 2]) {
    // Of another step, and whole.
    std::fs::copy(older.join(FILES[4]), newest.join(FILES[4])).expect("it is copied");
    let more = [&TRAIN[..], &["--set", "train.epochs=500", "--set", "checkpoint.keep=1"]].concat();
    let mut next = fixture.start_until("a checkpoint is damaged; an earlier one is taken", more.iter().copied());
    next.wait_for_line(&format!("going on after step {}", step(older)));
    next.wait_for_line("checkpoint after step");
    next.wait_for_line("checkpoint after step");
    next.interrupt();
    let left: Vec<_> = std::fs::read_dir(older.parent().expect("checkpoints")).expect("them").collect();
    assert_eq!(left.len(), 1, "the damaged one took the place of a newer one: {left:?}");
    let again = fixture.start_until("going on after step", more);
    again.interrupt();
}

fn where_none_is_intact_nothing_goes_on_and_nothing_is_tried_again(fixture: &Fixture, [older, newest]: [&Path; 2]) {
    let changed = [newest.join("optimizer.safetensors"), older.join("dense.safetensors")];
    let good = [flip(&changed[0]), std::fs::read(&changed[1]).expect("a file")];
    std::fs::remove_file(&changed[1]).expect("it is removed");
    for command in ["train", "up"] {
        let outcome = fixture.zagros([&[command], &TRAIN[1..]].concat()).expect(3);
        let help = "start over with --fresh";
        outcome.says(&["none of the 2 checkpoint(s) here is intact", "optimizer.safetensors", help]);
    }
    fixture.zagros([&TRAIN[..], &["--fresh"]].concat()).expect(0);
    std::fs::remove_dir_all(fixture.run_folder()).expect("the new run is removed");
    changed.iter().zip_eq(&good).for_each(|(file, good)| std::fs::write(file, good).expect("it is written"));
}

/// Nothing is waited for, and nothing without end is read, because a file or a manifest leads there.
#[test]
fn a_pipe_or_a_million_names_in_a_model_hold_nobody_up() {
    let fixture = Fixture::new(500);
    fixture.zagros(["train", "job.toml"]).expect(0);
    let model = fixture.run_folder().join("model");
    let named = model.display().to_string();
    for name in ["dense.safetensors", "job.toml", "rows-0-of-1.zrows"] {
        let good = std::fs::read(model.join(name)).expect("a file");
        std::fs::remove_file(model.join(name)).expect("it is removed");
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mkfifoat(rustix::fs::CWD, model.join(name), mode).expect("a pipe");
        for command in [&["inspect"][..], &["eval"], &["inspect", "--verify"]] {
            let outcome = fixture.zagros([&[command[0], named.as_str()], &command[1..]].concat()).expect(3);
            assert!((outcome.stdout + &outcome.stderr).contains("pipe"), "{name}: {}", outcome.stderr);
        }
        std::fs::remove_file(model.join(name)).expect("it is removed");
        std::fs::write(model.join(name), good).expect("it is written");
    }
    let mut manifest = read_json(&model.join("manifest.json"));
    for many in [1025, 1_000_000] {
        let names: Vec<Value> = (0..many).map(|number| format!("r{number}").into()).collect();
        manifest["row_files"] = names.into();
        write_sealed(&model, &mut manifest);
        for command in ["inspect", "eval"] {
            fixture.zagros([command, &named]).expect(3).says(&["manifest.json"]);
        }
    }
}

fn sha256(bytes: &[u8]) -> String {
    hex_digits(&ContentDigest::compute(bytes).sha256)
}

/// Writes a manifest with its own hash in it.
fn write_sealed(model: &Path, manifest: &mut Value) {
    let zeros = "0".repeat(64);
    manifest["manifest_sha256"] = zeros.as_str().into();
    let text = manifest.to_string();
    let sealed = text.replacen(&zeros, &sha256(text.as_bytes()), 1);
    std::fs::write(model.join("manifest.json"), sealed).expect("it is written");
}

/// The job in a model is as foreign as the model: that it trusts its module says nothing.
#[test]
fn a_module_that_a_models_own_job_trusts_is_not_opened_unasked() {
    let fixture = Fixture::new(500);
    fixture.zagros(["train", "job.toml"]).expect(0);
    let model = fixture.run_folder().join("model");
    let job = std::fs::read_to_string(model.join("job.toml")).expect("a job");
    let mut job: toml_edit::DocumentMut = job.parse().expect("TOML");
    let (hash, other) = ("ab".repeat(32), "cd".repeat(32));
    let module = format!("kind = 'torchscript'\nfile = '/nowhere/module.pt'\nsha256 = '{hash}'\ntrust = true\n");
    job["model"] = module.parse::<toml_edit::DocumentMut>().expect("TOML").as_item().clone();
    let job = job.to_string();
    std::fs::write(model.join("job.toml"), &job).expect("it is written");
    let mut manifest = read_json(&model.join("manifest.json"));
    let files = manifest["files"].as_array_mut().expect("files");
    let record = files.iter_mut().find(|file| file["name"] == "job.toml").expect("the job");
    (record["bytes"], record["sha256"]) = (job.len().into(), sha256(job.as_bytes()).into());
    write_sealed(&model, &mut manifest);
    let named = model.display().to_string();
    let trusted = format!("--trust-module {hash}");
    fixture.zagros(["eval", &named]).expect(2).says(&["can run code of its author", &trusted]);
    fixture.zagros(["eval", &named, "--trust-module", &other]).expect(2).says(&[&other, &trusted]);
    // Now it is looked for.
    fixture.zagros(["eval", &named, "--trust-module", &hash]).expect(3).says(&["/nowhere/module.pt"]);
}
