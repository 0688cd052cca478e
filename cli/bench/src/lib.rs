//! What `zagros-bench` and `zagros calibrate` measure with: one workload, servers and clients, the limits of sockets, measured training
//! steps, and a table under load. [`measure_machine`] runs the micro-benchmarks of this machine.

mod calibrate;
pub mod clients;
pub mod cluster;
pub mod table_load;
pub mod workload;

pub use calibrate::measure_machine;
