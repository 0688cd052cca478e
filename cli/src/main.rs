//! zagros
fn main() {}
