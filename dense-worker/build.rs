//! Tells binaries and tests where libtorch lies; torch-sys gives its dependents no rpath.
//!
//! Other crates that link this one name this file in their `Cargo.toml` (`build = "../dense-worker/build.rs"`).

use std::env;
use std::path::{Path, PathBuf};

/// Beside a program that was copied: in its own folder, in `lib` in it, or as in an installation, `bin` beside `lib`.
const BESIDE: [&str; 3] = ["$ORIGIN", "$ORIGIN/lib", "$ORIGIN/../lib"];
/// From `target/release/zagros` and from `target/release/deps/*`: a moved checkout keeps working.
const IN_CHECKOUT: [&str; 2] = ["$ORIGIN/../../.deps/libtorch/lib", "$ORIGIN/../../../.deps/libtorch/lib"];

fn main() {
    println!("cargo::rerun-if-env-changed=LIBTORCH");
    let at_build = env::var_os("LIBTORCH").map(PathBuf::from).filter(|folder| !is_found_in_checkout(folder));
    let at_build = at_build.map(|folder| folder.join("lib").display().to_string());
    for folder in BESIDE.into_iter().chain(IN_CHECKOUT).map(str::to_owned).chain(at_build) {
        println!("cargo::rustc-link-arg=-Wl,-rpath,{folder}");
    }
    // The bindings are compiled without optimisation. Without this, libtorch would call the program's copies of the inline functions of
    // the C++ library instead of its own: a sixth of the CPU of a start.
    println!("cargo::rustc-link-arg=-Wl,--exclude-libs,ALL");
}

/// Whether programs find this folder by their own place: it is the checkout's, and they are built into the checkout. A
/// program that named it all the same would run where it was built, and fail elsewhere. No run in the checkout would show this.
fn is_found_in_checkout(libtorch: &Path) -> bool {
    let same =
        |one: &Path, other: &Path| one.canonicalize().ok().is_some_and(|one| Some(one) == other.canonicalize().ok());
    let manifest = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let output = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    let checkout = manifest.ancestors().find(|folder| same(&folder.join(".deps/libtorch"), libtorch));
    checkout.is_some_and(|checkout| output.starts_with(checkout.join("target")))
}
