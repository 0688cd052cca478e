//! Compiles the shims over libtorch's c10d and TorchScript, and gives this crate's tests the path of libtorch.

use std::env;
use std::path::{Path, PathBuf};

/// As in `dense-worker/build.rs`: from `target/release/deps/*` of a checkout.
const IN_CHECKOUT: &str = "$ORIGIN/../../../.deps/libtorch/lib";

/// The header by which a call reports its failure.
const CALLS: &str = "shim/include";

/// Libraries that the NCCL library needs. The list is complete, so the linker finds a name that none of them defines.
const NCCL_NEEDS: [&str; 6] =
    ["-ltorch_cuda", "-lc10_cuda", "-ltorch_cpu", "-lc10", "-l:libnccl.so.2", "-l:libcudart.so.13"];

fn main() {
    println!("cargo::rerun-if-env-changed=LIBTORCH");
    println!("cargo::rerun-if-env-changed=LIBTORCH_CUDA");
    println!("cargo::rerun-if-changed=shim");
    println!("cargo::rerun-if-changed={CALLS}");
    let Ok(libtorch) = env::var("LIBTORCH") else {
        println!("cargo::error=LIBTORCH is not set; build inside the checkout, after `make setup`");
        return;
    };
    let mut shim = compiler(&libtorch);
    // libtorch's wheel does not contain Gloo's own headers. These declare what c10d's headers use.
    shim.define("USE_C10D_GLOO", None).file("shim/collective.cpp").file("shim/module.cpp");
    if env::var_os("CARGO_FEATURE_NCCL").is_some() {
        if let Err(problem) = nccl_library(&libtorch) {
            println!("cargo::error={problem}");
            return;
        }
        shim.file("shim/open_nccl.cpp");
    }
    shim.compile("zagros_torch");
    println!("cargo::rustc-link-search=native={libtorch}/lib");
    println!("cargo::rustc-link-lib=dylib=torch_cpu");
    println!("cargo::rustc-link-lib=dylib=c10");
    println!("cargo::rustc-link-arg=-Wl,-rpath,{IN_CHECKOUT}");
    println!("cargo::rustc-link-arg=-Wl,-rpath,{libtorch}/lib");
}

fn compiler(libtorch: &str) -> cc::Build {
    let include = Path::new(libtorch).join("include");
    let mut build = cc::Build::new();
    build
        .cpp(true)
        // Debug information of libtorch's headers would double the build time.
        .debug(false)
        // It converts arguments and calls libtorch.
        .opt_level(0)
        .std("c++20")
        .include(CALLS)
        .flag(format!("-isystem{}", include.display()))
        .flag(format!("-isystem{}", include.join("torch/csrc/api/include").display()));
    build
}

/// Makes `libzagros_nccl.so`. `src/c10d/sys/nccl.rs` puts it into the program and opens it when a job asks for it.
fn nccl_library(libtorch: &str) -> Result<(), String> {
    let cuda = env::var("LIBTORCH_CUDA").map_or_else(|_| Path::new(libtorch).join("../libtorch-cuda"), PathBuf::from);
    if !cuda.join("include/nccl.h").is_file() {
        return Err(format!("the feature nccl needs CUDA's headers in {}; run `make setup-cuda`", cuda.display()));
    }
    let mut build = compiler(libtorch);
    build
        .define("USE_C10D_NCCL", None)
        // The headers of cuBLAS and similar libraries are not fetched either.
        .include("shim/cuda")
        .flag(format!("-isystem{}", cuda.join("include").display()))
        .flag("-fvisibility=hidden")
        .debug(false)
        .file("shim/nccl.cpp");
    let objects = build.try_compile_intermediates().map_err(|error| format!("shim/nccl.cpp: {error}"))?;
    let library = PathBuf::from(env::var("OUT_DIR").map_err(|error| error.to_string())?).join("libzagros_nccl.so");
    let mut link = build.get_compiler().to_command();
    link.arg("-shared").arg("-o").arg(&library).args(objects);
    link.arg(format!("-L{}", cuda.join("lib").display())).arg(format!("-L{libtorch}/lib"));
    // The libraries of these libraries are found on the GPU machine.
    link.args(["-Wl,-z,defs", "-Wl,--no-as-needed"]).args(NCCL_NEEDS).arg("-Wl,--allow-shlib-undefined");
    match link.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("linking {} failed: {status}", library.display())),
        Err(error) => Err(format!("the linker {:?} cannot be started: {error}", link.get_program())),
    }
}
