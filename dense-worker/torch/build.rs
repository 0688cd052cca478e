//! Compiles the shim over libtorch's TorchScript, and gives this crate's tests the path of libtorch.

use std::env;
use std::path::Path;

/// As in `dense-worker/build.rs`: from `target/release/deps/*` of a checkout.
const IN_CHECKOUT: &str = "$ORIGIN/../../../.deps/libtorch/lib";
/// The header by which a call reports its failure.
const CALLS: &str = "../collective/shim/include";

fn main() {
    println!("cargo::rerun-if-env-changed=LIBTORCH");
    println!("cargo::rerun-if-changed=shim");
    println!("cargo::rerun-if-changed={CALLS}");
    let Ok(libtorch) = env::var("LIBTORCH") else {
        println!("cargo::error=LIBTORCH is not set; build inside the checkout, after `make setup`");
        return;
    };
    let include = Path::new(&libtorch).join("include");
    cc::Build::new()
        .cpp(true)
        // Debug information of libtorch's headers would double the build time.
        .debug(false)
        // It converts arguments and calls libtorch.
        .opt_level(0)
        .std("c++20")
        .include(CALLS)
        .flag(format!("-isystem{}", include.display()))
        .flag(format!("-isystem{}", include.join("torch/csrc/api/include").display()))
        .file("shim/module.cpp")
        .compile("zagros_script");
    println!("cargo::rustc-link-search=native={libtorch}/lib");
    println!("cargo::rustc-link-lib=dylib=torch_cpu");
    println!("cargo::rustc-link-lib=dylib=c10");
    println!("cargo::rustc-link-arg=-Wl,-rpath,{IN_CHECKOUT}");
    println!("cargo::rustc-link-arg=-Wl,-rpath,{libtorch}/lib");
}
