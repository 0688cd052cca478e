//! Does nothing: cargo counts the features of build dependencies where there is a build script.
fn main() {}
