//! Bytes from strangers: whatever decodes something that another process or a person wrote must answer or refuse, never
//! fall over.
//!
//! `cargo test -p zagros-fuzz` tries some thousand inputs a target; CONTRIBUTING.md has the line for a fuzzer that
//! looks for new paths. `BOLERO_RANDOM_SEED`, printed with a failure, repeats it.

mod allocations;
mod claims_of_size;
mod columns;
mod coordinator;
mod data;
mod messages;
mod storage;
