//! Dependencies keep to deny.toml: licences, sources, one version of each crate. The gate does not compile cargo-deny
//! (docs/adr/0002).

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;
use toml_edit::DocumentMut;
use zagros_tests::{read, repository};

/// What cargo prints in the checkout.
fn run_cargo(arguments: &[&str]) -> Vec<u8> {
    let printed = Command::new(env!("CARGO")).args(arguments).current_dir(repository()).output().expect("cargo starts");
    assert!(printed.status.success(), "{}", String::from_utf8_lossy(&printed.stderr));
    printed.stdout
}

/// `cargo metadata` for Linux on this kind of processor.
pub(crate) fn metadata(processor: &str) -> Value {
    let platform = format!("{processor}-unknown-linux-gnu");
    let printed = run_cargo(&["metadata", "--locked", "--format-version", "1", "--filter-platform", &platform]);
    serde_json::from_slice(&printed).expect("cargo writes JSON")
}

/// The packages that a program for Linux on x86-64 is made of, its tests and build scripts included.
fn packages() -> Vec<Value> {
    metadata("x86_64")["packages"].as_array().expect("packages is an array").clone()
}

fn deny() -> DocumentMut {
    read("deny.toml").parse().expect("deny.toml is TOML")
}

fn texts(deny: &DocumentMut, section: &str, key: &str) -> BTreeSet<String> {
    let array = deny[section][key].as_array().expect(key);
    array.iter().map(|value| value.as_str().expect("text").to_owned()).collect()
}

/// Whether the licences in `allowed` satisfy an SPDX expression. OR binds weaker than AND; an old manifest writes OR as `/`.
fn is_allowed(expression: &str, allowed: &BTreeSet<String>) -> bool {
    let parts = |text: &str, separator: &str| {
        let (mut depth, mut parts, mut start) = (0, Vec::new(), 0);
        for (at, c) in text.char_indices() {
            match c {
                '(' => depth += 1,
                ')' => depth -= 1,
                _ if depth == 0 && text[at..].starts_with(separator) && at >= start => {
                    parts.push(text[start..at].to_owned());
                    start = at + separator.len();
                }
                _ => {}
            }
        }
        parts.push(text[start..].to_owned());
        parts
    };
    let all = |text: &String| {
        parts(text, " AND ").iter().all(|part| {
            let part = part.trim();
            match part.strip_prefix('(').and_then(|part| part.strip_suffix(')')) {
                Some(inner) => is_allowed(inner, allowed),
                None => allowed.contains(part),
            }
        })
    };
    parts(&expression.replace('/', " OR "), " OR ").iter().any(all)
}

#[test]
fn every_dependency_has_a_licence_that_deny_toml_allows() {
    let allowed = texts(&deny(), "licenses", "allow");
    let packages = packages();
    assert!(packages.len() > 100, "the check looks at something");
    for package in packages {
        let licence = package["license"].as_str().unwrap_or_default();
        assert!(is_allowed(licence, &allowed), "{} {}: licence {licence:?}", package["name"], package["version"]);
    }
}

#[test]
fn a_licence_expression_is_read_as_spdx_defines_it() {
    let allowed = BTreeSet::from(["MIT", "ISC"].map(str::to_owned));
    for good in ["MIT", "MIT OR GPL-3.0", "GPL-3.0/MIT", "MIT AND ISC", "(GPL-3.0 OR MIT) AND ISC"] {
        assert!(is_allowed(good, &allowed), "{good}");
    }
    for bad in ["", "GPL-3.0", "MIT AND GPL-3.0", "(GPL-3.0 OR BSD-3-Clause) AND ISC", "GPL-3.0 OR BSD-3-Clause"] {
        assert!(!is_allowed(bad, &allowed), "{bad}");
    }
}

#[test]
fn every_dependency_comes_from_the_registry_that_deny_toml_names() {
    let allowed = texts(&deny(), "sources", "allow-registry");
    for package in packages() {
        // A crate of this workspace has no source.
        let Some(source) = package["source"].as_str() else { continue };
        let registry = source.strip_prefix("registry+").unwrap_or(source);
        assert!(allowed.contains(registry), "{} comes from {source}", package["name"]);
    }
}

#[test]
fn a_second_version_of_a_crate_is_named_in_deny_toml_and_each_name_there_is_needed() {
    let mut versions: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for package in packages() {
        let text = |key: &str| package[key].as_str().expect(key).to_owned();
        versions.entry(text("name")).or_default().insert(text("version"));
    }
    let skipped = texts(&deny(), "bans", "skip");
    for (name, versions) in &versions {
        let counted: Vec<_> =
            versions.iter().filter(|version| !skipped.contains(&format!("{name}@{version}"))).collect();
        assert!(counted.len() <= 1, "{name} has the versions {counted:?}: add the older one to deny.toml, or drop it");
    }
    for skip in &skipped {
        let (name, version) = skip.split_once('@').expect("name@version");
        let found = versions.get(name).is_some_and(|versions| versions.len() > 1 && versions.contains(version));
        assert!(found, "deny.toml names {skip}, of which there is no second version");
    }
}

/// Else the build compiles zstd, bzip2 and AES for tch, which never opens an archive here.
#[test]
fn no_archives_are_compiled_below_tch() {
    let packages = packages();
    let zip: Vec<_> = packages.iter().filter(|package| package["name"] == "zip").collect();
    assert_eq!(zip.len(), 1, "the crates named zip: {zip:?}");
    assert!(zip[0]["source"].is_null(), "the crate zip is {}, not dense-worker/npz: see Cargo.toml", zip[0]["source"]);
    assert!(!packages.iter().any(|package| package["name"] == "aes"), "something compiles AES");
}

/// Each crate with its features, as many times as it is compiled.
fn compiled_features(packages: &[&str]) -> BTreeSet<String> {
    let tree = ["tree", "--locked", "--edges", "normal,build", "--prefix", "none", "--format", "{p}|{f}"];
    let lines = String::from_utf8(run_cargo(&[&tree[..], packages].concat())).expect("UTF-8");
    lines.lines().filter(|line| !line.is_empty()).map(|line| line.trim_end_matches(" (*)").to_owned()).collect()
}

#[test]
fn the_trainer_is_compiled_with_the_features_that_the_workspace_asks_for() {
    let (trainer, all) =
        (compiled_features(&["--package", "zagros", "--package", "zagros-shell"]), compiled_features(&["--workspace"]));
    assert!(trainer.len() > 100, "the check looks at something");
    let others: Vec<_> = trainer.difference(&all).collect();
    assert!(
        others.is_empty(),
        "make test compiles these again with other features: name the missing ones in plumbing/Cargo.toml: {others:#?}"
    );
}
