//! Tells binaries and tests where libtorch lies; torch-sys gives its dependents no rpath.
//!
//! Other crates that link this one name this file in their `Cargo.toml` (`build = "../dense-worker/build.rs"`).

use std::env;

/// From `target/release/zagros` and from `target/release/deps/*`: a moved checkout keeps working.
const IN_CHECKOUT: [&str; 2] = ["$ORIGIN/../../.deps/libtorch/lib", "$ORIGIN/../../../.deps/libtorch/lib"];

fn main() {
    println!("cargo::rerun-if-env-changed=LIBTORCH");
    // Where it lay at build time comes last: right for a target folder outside the checkout.
    let at_build = env::var("LIBTORCH").ok().map(|folder| format!("{folder}/lib"));
    for folder in IN_CHECKOUT.map(str::to_owned).into_iter().chain(at_build) {
        println!("cargo::rustc-link-arg=-Wl,-rpath,{folder}");
    }
}
