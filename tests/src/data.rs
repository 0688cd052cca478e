//! Real data sets, which are not part of the checkout.

use std::path::PathBuf;

/// `None` after saying that the test skips. With `CI=true` missing data is a failure, so that CI cannot turn green by
/// testing nothing.
pub fn real_data(name: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("ZAGROS_DATA").map(PathBuf::from);
    let folder = folder.unwrap_or_else(|| super::repository().join("../shared/data"));
    let path = folder.join(name);
    if path.exists() {
        return Some(path);
    }
    let needed = std::env::var("CI").is_ok_and(|value| value == "true");
    assert!(!needed, "CI needs {name} in {} (or set ZAGROS_DATA)", folder.display());
    eprintln!("skipped: no {name} in {} (set ZAGROS_DATA to the folder that has it)", folder.display());
    None
}
