//! Every shipped job file loads, and does what its comments say.

use std::fs;
use std::path::{Path, PathBuf};

use zagros_job::{Format, HeldOutRows, Job, Model, Overrides, Scaling, Values};

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
    assert!(job.features.numeric.iter().all(|feature| feature.log && feature.standardise == Scaling::No));
    assert_eq!((job.tables[25].name.as_str(), job.tables[25].dim), ("C26", 16));
    assert!(job.data_files().iter().all(|path| path.is_absolute()), "{:?}", job.data_files());
    assert!(job.data.train[0].ends_with("examples/../data/quickstart/train.txt"), "{:?}", job.data.train);
    assert_eq!(load("criteo.toml").data.test, HeldOutRows::Share(0.1));
}

#[test]
fn adult_reads_headerless_csv() {
    let job = load("adult.toml");
    let Format::Delimited(layout) = &job.data.format else { panic!("{:?}", job.data.format) };
    assert_eq!((layout.delimiter, layout.header, layout.columns.len(), layout.trim), (b',', false, 15, true));
    let zagros_job::TargetKind::Click { positive, .. } = &job.features.main_target().kind else { panic!("a click") };
    assert_eq!(*positive, [">50K", ">50K."]);
    assert!(matches!(job.model, Model::Ffnn { .. }));
}

#[test]
fn finalmlp_has_a_gate_of_the_user_and_one_of_the_movie() {
    let job = load("movielens_finalmlp.toml");
    let Model::FinalMlp { gate: Some(gate), .. } = &job.model else { panic!("{:?}", job.model) };
    assert_eq!((&gate.first[..], &gate.second[..]), (&["user_id".to_owned()][..], &["movie_id".to_owned()][..]));
}

#[test]
fn movielens_pools_genres_and_tags() {
    let job = load("movielens.toml");
    let many = job.features.categorical.iter().filter(|feature| matches!(feature.values, Values::Many { .. }));
    assert_eq!(many.map(|feature| feature.name.as_str()).collect::<Vec<_>>(), ["genres", "tags"]);
    assert_eq!(job.data.shuffle_rows, 100_000);
}
