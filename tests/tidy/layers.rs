//! Arrows point downwards only: the member list of the workspace is the order of the layers.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use toml_edit::{DocumentMut, Item};
use zagros_tests::read;

use super::dependencies::metadata;

/// A crate of the workspace: its folder, name, and what it depends on outside tests.
struct CrateMember {
    folder: String,
    name: String,
    dependencies: BTreeSet<String>,
}

fn members() -> Vec<CrateMember> {
    let workspace = manifest("Cargo.toml");
    let folders = workspace["workspace"]["members"].as_array().expect("members is an array");
    folders.iter().map(|folder| member(folder.as_str().expect("a member is text"))).collect()
}

fn manifest(path: &str) -> DocumentMut {
    read(path).parse().expect(path)
}

fn member(folder: &str) -> CrateMember {
    let manifest = manifest(&format!("{folder}/Cargo.toml"));
    let name = manifest["package"]["name"].as_str().expect("a package has a name").to_owned();
    let table = manifest.get("dependencies").and_then(Item::as_table_like);
    let dependencies = table.into_iter().flat_map(|table| table.iter()).map(|(key, _)| key.to_owned()).collect();
    CrateMember { folder: folder.to_owned(), name, dependencies }
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

/// A state machine or a measure: event in, value out. Whatever a pure crate stands on is pure too.
const PURE: &[&str] = &[
    "zagros-zip",
    "zagros-protocol",
    "zagros-table",
    "zagros-rows",
    "zagros-coordinator-core",
    "zagros-worker-core",
    "zagros-collective",
    "zagros-model",
    "zagros-eval",
    "zagros-planner",
];

/// Runtimes, sockets, databases, tensors, metrics, logs, and chance from the operating system.
const IMPURE: &[&str] = &[
    "tokio",
    "futures",
    "tonic",
    "tower",
    "axum",
    "http",
    "hyper",
    "h2",
    "reqwest",
    "socket2",
    "mio",
    "rocksdb",
    "tch",
    "prometheus",
    "tracing",
    "rand",
    "getrandom",
];

/// A dependency that has it only because other packages of the workspace ask for the feature: dropout's generator has a seed.
const FEATURE_OF_OTHERS: (&str, &str) = ("rand_core", "getrandom");

#[test]
fn pure_crates_stand_on_pure_crates_alone() {
    let graph = PackageGraph::of_workspace();
    for name in PURE {
        let closure = graph.closure(name);
        let allowed = match *name {
            // Files of rows report what they do to a disk in the log.
            "zagros-rows" => "tracing",
            // The parser of job files brings it.
            "zagros-model" => "getrandom",
            _ => "",
        };
        for dependency in IMPURE.iter().filter(|dependency| **dependency != allowed) {
            assert!(!closure.contains(*dependency), "{name} must stay pure: `cargo tree -p {name} -i {dependency}`");
        }
    }
    let impure = graph.closure("zagros-transport");
    assert!(impure.contains("tonic") && impure.contains("tokio"), "the check finds what is there: {impure:?}");
}

/// What each package is linked with: without build scripts and tests.
struct PackageGraph {
    names: BTreeMap<String, String>,
    dependencies: BTreeMap<String, Vec<String>>,
}

impl PackageGraph {
    fn of_workspace() -> Self {
        let metadata = metadata(std::env::consts::ARCH);
        let text = |value: &Value| value.as_str().expect("cargo writes text").to_owned();
        let list = |value: &Value| value.as_array().expect("cargo writes a list").clone();
        let names = list(&metadata["packages"]).iter().map(|of| (text(&of["id"]), text(&of["name"]))).collect();
        let is_linked = |dependency: &Value| list(&dependency["dep_kinds"]).iter().any(|kind| kind["kind"].is_null());
        let linked = |node: &Value| {
            let dependencies = list(&node["deps"]);
            dependencies.iter().filter(|of| is_linked(of)).map(|of| text(&of["pkg"])).collect()
        };
        let nodes = list(&metadata["resolve"]["nodes"]);
        Self { names, dependencies: nodes.iter().map(|node| (text(&node["id"]), linked(node))).collect() }
    }

    fn closure(&self, name: &str) -> BTreeSet<String> {
        let root = self.names.iter().find(|(_, of)| *of == name).expect(name).0;
        let (mut found, mut open) = (BTreeSet::new(), vec![root]);
        while let Some(id) = open.pop() {
            if found.insert(self.names[id].clone()) {
                let is_own = |used: &&String| (&*self.names[id], &*self.names[*used]) != FEATURE_OF_OTHERS;
                open.extend(self.dependencies[id].iter().filter(is_own));
            }
        }
        found
    }
}

/// So a program can do without.
#[test]
fn one_crate_names_torch_and_only_programs_name_that_crate() {
    let members = members();
    let users = |name: &str| -> Vec<&str> {
        let uses = members.iter().filter(|member| member.dependencies.contains(name));
        uses.map(|member| member.name.as_str()).collect()
    };
    assert_eq!(users("tch"), ["zagros-torch"]);
    assert_eq!(users("zagros-torch"), ["zagros-bench", "zagros"]);
}

/// What talks to other processes, and the servers.
const WIRE: &[&str] = &[
    "zagros-transport",
    "zagros-collective",
    "zagros-torch",
    "zagros-coordinator-core",
    "zagros-coordinator-client",
    "zagros-coordinator",
    "zagros-embedding-client",
    "zagros-embedding-server",
];

/// The client of object stores has a runtime of its own.
#[test]
fn a_saved_model_scores_without_a_runtime_and_without_servers() {
    let members = members();
    let names = |package: &str, named: &str| {
        let member = members.iter().find(|member| member.name == package).expect("it is a member");
        member.dependencies.contains(named)
    };
    for name in IMPURE.iter().chain(WIRE) {
        assert!(!names("zagros-scoring", name), "zagros-scoring must not depend on {name}");
    }
    assert!(names("zagros-dense-worker", "tokio") && names("zagros-dense-worker", "zagros-embedding-client"));
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
fn rocksdb_is_named_by_the_coordinator_alone() {
    let named: Vec<String> = members()
        .into_iter()
        .filter(|member| member.dependencies.contains("rocksdb"))
        .map(|member| member.folder)
        .collect();
    assert_eq!(named, ["coordinator"]);
}

#[test]
fn plumbing_knows_no_word_of_recommenders() {
    for (path, text) in zagros_tests::sources("plumbing") {
        for word in ["embedding table", "gradient", "staleness", "bucket map"] {
            assert!(!text.contains(word), "{}: {word:?}", path.display());
        }
    }
}
