//! A type's name says which one it is: few types share theirs with a type of another module.

use std::collections::BTreeMap;

use super::syntax::crates;

/// Percent of all types.
const MOST: usize = 10;

#[test]
fn few_types_share_their_name() {
    let mut count: BTreeMap<String, usize> = BTreeMap::new();
    for name in crates().iter().flat_map(|syntax| syntax.modules.values()).flat_map(|module| &module.types) {
        *count.entry(name.clone()).or_default() += 1;
    }
    let all: usize = count.values().sum();
    assert!(all > 500, "the check sees types: {all}");
    let shared: BTreeMap<&String, &usize> = count.iter().filter(|(_, count)| **count > 1).collect();
    let sharing: usize = shared.values().copied().sum();
    assert!(
        sharing * 100 <= all * MOST,
        "{sharing} of {all} types share their name, at most {MOST} %: give each a second word: {shared:?}"
    );
}
