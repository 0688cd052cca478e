//! Arrows point downwards only: the member list of the workspace is the order of the layers.

use std::collections::BTreeSet;

use toml_edit::{DocumentMut, Item};
use zagros_tests::repository;

/// A crate of the workspace: its folder, name, and what it depends on outside tests.
struct Member {
    folder: String,
    name: String,
    dependencies: BTreeSet<String>,
}

fn members() -> Vec<Member> {
    let workspace = manifest("Cargo.toml");
    let folders = workspace["workspace"]["members"].as_array().expect("members is an array");
    folders.iter().map(|folder| member(folder.as_str().expect("a member is text"))).collect()
}

fn manifest(path: &str) -> DocumentMut {
    let text = std::fs::read_to_string(repository().join(path)).expect(path);
    text.parse().expect(path)
}

fn member(folder: &str) -> Member {
    let manifest = manifest(&format!("{folder}/Cargo.toml"));
    let name = manifest["package"]["name"].as_str().expect("a package has a name").to_owned();
    let table = manifest.get("dependencies").and_then(Item::as_table_like);
    let dependencies = table.into_iter().flat_map(|table| table.iter()).map(|(key, _)| key.to_owned()).collect();
    Member { folder: folder.to_owned(), name, dependencies }
}

#[test]
fn a_crate_depends_only_on_crates_above_it() {
    let members = members();
    let names: Vec<&str> = members.iter().map(|member| member.name.as_str()).collect();
    for (position, member) in members.iter().enumerate() {
        for dependency in &member.dependencies {
            let Some(place) = names.iter().position(|name| name == dependency) else { continue };
            assert!(place < position, "{} must not depend on {dependency}", member.name);
        }
    }
}

#[test]
fn pure_cores_have_no_io_in_their_manifest() {
    let impure = ["tokio", "tonic", "axum", "rocksdb", "tracing", "prometheus", "rand"];
    for member in members() {
        let pure = ["embedding-server/table", "coordinator/core", "dense-worker/collective", "dense-worker/eval"];
        if pure.contains(&member.folder.as_str()) {
            for dependency in impure {
                assert!(!member.dependencies.contains(dependency), "{} must stay pure: {dependency}", member.name);
            }
        }
    }
}

#[test]
fn only_the_dense_worker_and_what_stands_on_it_link_torch() {
    let mut linked = BTreeSet::from(["tch".to_owned(), "zagros-collective".to_owned()]);
    for member in members() {
        if member.dependencies.iter().any(|dependency| linked.contains(dependency)) {
            let allowed = ["zagros-script", "zagros-dense-worker", "zagros", "zagros-bench"];
            assert!(allowed.contains(&member.name.as_str()), "{} links torch", member.name);
            linked.insert(member.name);
        }
    }
    assert!(linked.contains("zagros"), "the check looks at something");
}

/// Else all that stands on such a crate is compiled twice: for tests with the feature, for programs without.
#[test]
fn tests_ask_no_more_features_of_a_crate_than_programs_do() {
    let members = members();
    let of_programs: BTreeSet<&str> =
        members.iter().flat_map(|member| &member.dependencies).map(String::as_str).collect();
    assert!(of_programs.contains("tokio"), "the check looks at something");
    for member in &members {
        let manifest = manifest(&format!("{}/Cargo.toml", member.folder));
        let of_tests = manifest.get("dev-dependencies").and_then(Item::as_table_like);
        for (name, dependency) in of_tests.into_iter().flat_map(|table| table.iter()) {
            let asks = dependency.get("features").is_some();
            assert!(
                !asks || !of_programs.contains(name),
                "the tests of {} ask for features of {name}: name them in [workspace.dependencies]",
                member.name
            );
        }
    }
}

#[test]
fn rocksdb_is_named_by_the_cold_tier_alone() {
    let named: Vec<String> = members()
        .into_iter()
        .filter(|member| member.dependencies.contains("rocksdb"))
        .map(|member| member.folder)
        .collect();
    assert_eq!(named, ["embedding-server/cold"]);
}

#[test]
fn plumbing_knows_no_word_of_recommenders() {
    for (path, text) in zagros_tests::sources("plumbing") {
        for word in ["embedding table", "gradient", "staleness", "bucket map"] {
            assert!(!text.contains(word), "{}: {word:?}", path.display());
        }
    }
}
