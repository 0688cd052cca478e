//! Compiles the shim over libtorch's c10d, and tells this crate's tests where libtorch lies.

use std::env;
use std::path::Path;

/// As in `dense-worker/build.rs`: from `target/release/deps/*` of a checkout.
const IN_CHECKOUT: &str = "$ORIGIN/../../../.deps/libtorch/lib";

fn main() {
    println!("cargo::rerun-if-env-changed=LIBTORCH");
    println!("cargo::rerun-if-changed=shim");
    let Ok(libtorch) = env::var("LIBTORCH") else {
        println!("cargo::error=LIBTORCH is not set; build inside the checkout, after `make setup`");
        return;
    };
    let include = Path::new(&libtorch).join("include");
    cc::Build::new()
        .cpp(true)
        .std("c++20")
        .define("USE_C10D_GLOO", None)
        .file("shim/collective.cpp")
        // Gloo's own headers are not part of libtorch's wheel; these declare what c10d's headers name.
        .include("shim/include")
        .flag(format!("-isystem{}", include.display()))
        .flag(format!("-isystem{}", include.join("torch/csrc/api/include").display()))
        .compile("zagros_collective");
    println!("cargo::rustc-link-search=native={libtorch}/lib");
    println!("cargo::rustc-link-lib=dylib=torch_cpu");
    println!("cargo::rustc-link-lib=dylib=c10");
    println!("cargo::rustc-link-arg=-Wl,-rpath,{IN_CHECKOUT}");
    println!("cargo::rustc-link-arg=-Wl,-rpath,{libtorch}/lib");
}
