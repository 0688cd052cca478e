//! All tests of whole programs and of the code base, in one program: `cargo test -p zagros-tests -- tidy` runs one suite.

mod convergence;
mod integration;
mod tidy;
