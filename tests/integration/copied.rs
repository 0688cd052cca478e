//! A program that was copied elsewhere runs with libtorch beside it or named, and depends on no checkout.

use std::path::Path;
use std::process::{Command, Output};

use zagros_tests::{TestProgram, repository};

fn copy(folder: &Path) {
    std::fs::create_dir_all(folder).expect("a folder");
    std::fs::copy(TestProgram::Zagros.path(), folder.join("zagros")).expect("the program is copied");
}

fn run(folder: &Path, libraries: Option<&Path>) -> Output {
    let mut command = Command::new(folder.join("zagros"));
    command.arg("--version").env_remove("LD_LIBRARY_PATH");
    libraries.map(|libraries| command.env("LD_LIBRARY_PATH", libraries));
    command.output().expect("it starts")
}

#[test]
fn a_copied_program_runs_with_libtorch_beside_it_or_named() {
    let libtorch = repository().join(".deps/libtorch/lib").canonicalize().expect("libtorch is set up");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (alone, beside, installed) = (folder.path().join("a"), folder.path().join("b"), folder.path().join("c/bin"));
    for place in [&alone, &beside, &installed] {
        copy(place);
    }
    std::os::unix::fs::symlink(&libtorch, beside.join("lib")).expect("a link");
    std::os::unix::fs::symlink(&libtorch, folder.path().join("c/lib")).expect("a link");
    for (place, libraries) in [(&beside, None), (&installed, None), (&alone, Some(libtorch.as_path()))] {
        let output = run(place, libraries);
        assert!(output.status.success(), "{}: {}", place.display(), String::from_utf8_lossy(&output.stderr));
        assert!(String::from_utf8_lossy(&output.stdout).starts_with("zagros "));
    }
}

/// It does not run by the checkout's copy, which the next machine has not; the library that is missing is named.
#[test]
fn a_copied_program_without_libtorch_depends_on_nothing_of_the_checkout() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    copy(folder.path());
    let output = run(folder.path(), None);
    let outcome = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && outcome.contains("libtorch"), "{outcome}");
}
