//! The binary as a user runs it: real processes, real files, real sockets on loopback.

mod apart;
mod bad_data;
mod bad_job;
mod bench;
mod cluster;
mod damage;
mod data;
mod early_stop;
mod ending;
mod faults;
mod fixture;
mod help;
mod inspect;
mod memory;
mod monitoring;
mod page;
mod rejoin;
mod resume;
mod saved_model;
mod servers;
mod signals;
mod store;
mod streaming;
mod train;
mod watch;
mod workers;
