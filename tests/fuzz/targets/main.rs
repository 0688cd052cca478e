//! Bytes from strangers: whatever decodes something that another process or a person wrote is fed with noise and with
//! nearly good input, and must answer or refuse, never fall over.
//!
//! `cargo test -p zagros-fuzz` tries some thousand inputs a target. The same targets run for hours under a
//! fuzzer that looks for new paths: the line for it is in CONTRIBUTING.md.
//! `BOLERO_RANDOM_SEED`, printed with a failure, repeats it.

mod allocations;
mod claims_of_size;
mod columns;
mod coordinator;
mod data;
mod every_message;
mod job;
mod messages;
mod packed;
mod rows;
mod storage;
