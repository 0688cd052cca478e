//! Every kind of network learns real data: short runs, one seed.

use zagros_tests::real_data;

use super::{path_set, train};

/// Networks beside those of the shipped examples, as `--set` takes them.
const NETWORKS: [(&str, &str); 7] = [
    ("DCNv2, stacked", "model={kind='dcnv2', cross_layers=2, hidden=[128, 64], dropout=0.2}"),
    ("DCNv2, parallel of rank 16", "model={kind='dcnv2', rank=16, structure='parallel', hidden=[128], dropout=0.2}"),
    ("DeepFM", "model={kind='deepfm', hidden=[128, 64], dropout=0.2}"),
    ("Wide & Deep", "model={kind='wide_deep', hidden=[128, 64], dropout=0.2}"),
    ("Wukong", "model={kind='wukong', layers=2, top=[128, 64], dropout=0.2}"),
    ("FinalMLP", "model={kind='finalmlp', first=[128, 64], second=[128], heads=4, gate={}, dropout=0.2}"),
    ("DLRM", "model={kind='dlrm', bottom=[64], top=[128, 64], dropout=0.2}"),
];

/// What each is to reach: below what these runs reach by a few standard errors of the test part.
const ADULT: f64 = 0.921;
const MOVIELENS: f64 = 0.783;
const OPTIMISED: f64 = 0.89;

fn below(least: f64, name: &str, example: &str, sets: &[String]) -> Vec<String> {
    let aucs = NETWORKS.map(|(network, set)| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let auc = train(folder.path(), example, &[sets, &[set.to_owned()]].concat());
        println!("{name}, {network}: test AUC {auc:.4}");
        (network, auc)
    });
    let low = aucs.iter().filter(|(_, auc)| *auc < least);
    low.map(|(network, auc)| format!("{network}: {auc:.4}")).collect()
}

#[test]
fn every_network_learns_adult() {
    let Some(folder) = real_data("adult") else { return };
    let sets = [
        path_set("data.train", &folder.join("adult.data")),
        path_set("data.test", &folder.join("adult.test")),
        "train.epochs=5".to_owned(),
    ];
    assert_eq!(below(ADULT, "adult", "adult.toml", &sets), [""; 0]);
}

#[test]
fn every_network_learns_movielens() {
    let Some(folder) = real_data("movielens") else { return };
    let sets = [
        path_set("data.train", &folder.join("train.csv.gz")),
        path_set("data.validation", &folder.join("valid.csv.gz")),
        path_set("data.test", &folder.join("test.csv.gz")),
        "train.epochs=3".to_owned(),
    ];
    assert_eq!(below(MOVIELENS, "movielens", "movielens.toml", &sets), [""; 0]);
}

#[test]
fn every_dense_optimiser_learns_adult() {
    let Some(folder) = real_data("adult") else { return };
    let sets = [path_set("data.train", &folder.join("adult.data")), path_set("data.test", &folder.join("adult.test"))];
    let aucs = [
        "optimizer={kind='adamw', lr=0.002, weight_decay=0.05}",
        "optimizer={kind='adagrad', lr=0.02}",
        "optimizer={kind='sgd', lr=0.1, momentum=0.9}",
    ]
    .map(|optimizer| {
        let more = [
            optimizer,
            "train.epochs=2",
            "train.schedule={kind='cosine', warmup=5, decay=60, floor=0.1}",
            "train.clip_norm=2",
            "train.non_finite=skip",
        ];
        let sets: Vec<String> = sets.iter().cloned().chain(more.map(str::to_owned)).collect();
        let folder = tempfile::tempdir().expect("a temporary folder");
        let auc = train(folder.path(), "adult.toml", &sets);
        println!("adult, {optimizer}: test AUC {auc:.4}");
        auc
    });
    assert!(aucs.iter().all(|auc| *auc >= OPTIMISED), "test AUC {aucs:?}");
}
