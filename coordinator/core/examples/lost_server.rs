//! The coordinator without a process: hours of a run in microseconds, because time is an argument.
//!
//! `cargo run --release -p zagros-coordinator-core --example lost_server`

use std::error::Error;
use std::time::Duration;

use zagros_coordinator_core::{Core, CoreConfig, MemberSlot};
use zagros_protocol::control::JoinRequest;
use zagros_protocol::{PROTOCOL_VERSION, RunId};

fn main() -> Result<(), Box<dyn Error>> {
    let mut core = Core::new(CoreConfig {
        run: RunId(1),
        job: "example".to_owned(),
        servers: 1,
        workers: 1,
        min_workers: 1,
        buckets: 64,
        epochs: 1,
        staleness: 4,
        lease: Duration::from_secs(10),
        timeout: Duration::from_secs(30),
        fingerprint: 0xfeed,
        ..CoreConfig::default()
    });

    // An embedding server joins at the start of the run. It learns its incarnation and how long its lease is.
    let slot = MemberSlot::server(0);
    let request = JoinRequest {
        role: slot.role.to_wire(),
        index: slot.index,
        address: "127.0.0.1:7701".to_owned(),
        instance: 1,
        job_fingerprint: 0xfeed,
        protocol_version: PROTOCOL_VERSION,
        release: env!("CARGO_PKG_VERSION").to_owned(),
        ..JoinRequest::default()
    };
    let joined = core.join(Duration::ZERO, &request)?;
    println!("incarnation {}, lease of {} ms", joined.incarnation, joined.lease_ms);

    // An hour without a heartbeat. The process around the core calls `tick` every second; had it slept itself, all leases
    // would be extended.
    for second in 0..3600 {
        core.tick(Duration::from_secs(second));
    }
    let events: Vec<String> = core.take_events().iter().map(ToString::to_string).collect();
    events.iter().for_each(|event| println!("{event}"));
    assert!(events.iter().any(|event| event.starts_with("embedding server 0 is lost")), "{events:?}");

    // Its slot is free. The placement says whom workers wait for.
    println!("waits for: {}", core.placement(Duration::from_secs(3600)).waiting_for);
    Ok(())
}
