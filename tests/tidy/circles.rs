//! Files do not name items of each other in a circle. An import is an arrow, and so is a path in the code, such as a
//! call `page::write(…)`.
//!
//! A module is a part of its ancestors: what it takes from `super` or above makes no arrow, as it does not in privacy.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use zagros_tests::short;

use super::syntax::{CrateSyntax, crates};

/// By file: the files of the same crate from which it imports an item.
type Imports = BTreeMap<PathBuf, BTreeSet<PathBuf>>;

fn imports(syntax: &CrateSyntax) -> Imports {
    let mut edges = Imports::new();
    for (path, module) in &syntax.modules {
        let imported = module.imports.iter().map(|import| syntax.file_of(path, &import.path));
        for target in imported.chain(module.paths.iter().map(|name| syntax.file_of_path(path, name))) {
            let is_part_of = |file: &Path| (0..path.len()).any(|depth| syntax.modules[&path[..depth]].file == file);
            if let Some(target) = target.filter(|target| **target != module.file && !is_part_of(target)) {
                edges.entry(module.file.clone()).or_default().insert(target.to_owned());
            }
        }
    }
    edges
}

fn reachable<'a>(edges: &'a Imports, file: &'a Path) -> BTreeSet<&'a Path> {
    let (mut found, mut open) = (BTreeSet::new(), vec![file]);
    while let Some(file) = open.pop() {
        for next in edges.get(file).into_iter().flatten() {
            if found.insert(next.as_path()) {
                open.push(next);
            }
        }
    }
    found
}

/// Groups of files each of which reaches all others of its group.
fn circles(edges: &Imports) -> BTreeSet<BTreeSet<PathBuf>> {
    let reach: BTreeMap<&Path, BTreeSet<&Path>> =
        edges.keys().map(|file| (file.as_path(), reachable(edges, file))).collect();
    let in_circle = reach.iter().filter(|(file, reached)| reached.contains(*file));
    let circle = in_circle.map(|(file, reached)| {
        let back = |other: &&Path| reach.get(other).is_some_and(|reached| reached.contains(file));
        reached.iter().copied().filter(back).map(Path::to_owned).collect()
    });
    circle.collect()
}

#[test]
fn no_files_import_from_each_other_in_a_circle() {
    let crates = crates();
    let edges: Vec<Imports> = crates.iter().map(imports).collect();
    let count: usize = edges.iter().flat_map(BTreeMap::values).map(BTreeSet::len).sum();
    assert!(count > 300, "the check sees imports: {count}");
    let found: Vec<Vec<String>> =
        edges.iter().flat_map(circles).map(|circle| circle.iter().map(|file| short(file)).collect()).collect();
    assert!(found.is_empty(), "{} circles; move what both sides need to a file of its own:\n{found:#?}", found.len());
}

#[test]
fn a_circle_of_three_is_found_and_a_chain_is_none() {
    let edges = |pairs: &[(&str, &str)]| {
        let mut edges = Imports::new();
        for (from, to) in pairs {
            edges.entry(from.into()).or_default().insert(to.into());
        }
        edges
    };
    let circle = circles(&edges(&[("a", "b"), ("b", "c"), ("c", "a"), ("a", "d")]));
    assert_eq!(circle, BTreeSet::from([["a", "b", "c"].map(PathBuf::from).into()]));
    assert!(circles(&edges(&[("a", "b"), ("b", "c"), ("a", "c")])).is_empty());
}
