//! Memory does not grow with the file.

use std::process::Command;

use crate::fixture::Fixture;

/// Peak resident memory of a run, from the kernel's own account of the process, kB.
fn peak(fixture: &Fixture) -> f64 {
    // A shuffle window that is filled several times in the short run, too.
    let sets = ["--set", "output.save_model=false", "--set", "data.shuffle_rows=5000"];
    fixture.zagros(["train", "job.toml"].into_iter().chain(sets)).expect(0);
    fixture.summary()["peak_rss_bytes"].as_f64().expect("a peak")
}

#[test]
fn a_file_ten_times_longer_of_the_same_ids_needs_the_same_memory() {
    let fixture = Fixture::new(30_000);
    let short = peak(&fixture);
    let train = fixture.path("train.txt");
    // The same rows again: the same id space, ten times the bytes.
    let again = format!(
        "for i in 1 2 3 4 5 6 7 8 9 10; do cat '{0}'; done > '{0}.long' && mv '{0}.long' '{0}'",
        train.display()
    );
    assert!(Command::new("sh").args(["-c", &again]).status().expect("sh runs").success());
    let long = peak(&fixture);
    assert!((long / short - 1.0).abs() < 0.05, "{short} bytes for the short file, {long} for the long one");
}
