//! Finds the program `zagros`, with which benchmarks start coordinator, embedding servers and dense workers.

use std::path::{Path, PathBuf};

use zagros_shell::{Exit, Failure, OrInternal};

/// The `zagros` in the folder of this program.
pub(crate) fn zagros_program() -> Result<PathBuf, Failure> {
    find_zagros(&std::env::current_exe().or_internal()?)
}

fn find_zagros(this: &Path) -> Result<PathBuf, Failure> {
    let zagros = this.with_file_name("zagros");
    if zagros.is_file() {
        return Ok(zagros);
    }
    let what = format!("{} does not exist: this benchmark starts its processes from it", zagros.display());
    Err(Failure::with_help(Exit::Usage, what, "build it with `make build`, or copy `zagros` beside this program"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zagros_is_found_in_the_same_folder_or_its_absence_is_explained() {
        let folder = tempfile::tempdir().unwrap();
        let this = folder.path().join("zagros-bench");
        let missing = format!("{:?}", find_zagros(&this).unwrap_err());
        assert!(missing.contains("make build"), "{missing}");
        std::fs::write(folder.path().join("zagros"), "").unwrap();
        assert_eq!(find_zagros(&this).unwrap(), folder.path().join("zagros"));
    }
}
