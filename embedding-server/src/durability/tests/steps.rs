//! A server that ends, or writes a base, between two pushes of one step.

use zagros_job::{Mode, Optimizer};

use super::*;

/// Three workers, with a quarter, a half and a quarter of each step's samples, and rows that two or all of them have.
fn pushes() -> Vec<PushRequest> {
    let mut all = Vec::new();
    for step in 1..=3 {
        for (writer, share) in [(1, 0.25), (2, 0.5), (3, 0.25)] {
            let ids: Vec<u64> = (0..12).filter(|id| (id + step) % writer < 2).collect();
            let request = push_of(&[(0, &ids[2..]), (ITEM, &ids)], step, 0.3 * step as f32 - writer as f32);
            all.push(PushRequest { writer, share: Some(share), ..request });
        }
    }
    all
}

/// Rows after all pushes. `between` makes another server of the one that has applied this many.
fn trained(home: &LogFixture, mut between: impl FnMut(usize, Arc<EmbeddingService>) -> Arc<EmbeddingService>) -> Slots {
    let mut service = home.start();
    for (applied, request) in pushes().iter().enumerate() {
        service = between(applied, service);
        assert!(!push(&service, request).unwrap().duplicate);
    }
    rows(&service)
}

fn home(mode: Mode, cluster: &str) -> LogFixture {
    LogFixture::with_change(cluster, |job| {
        job.train.mode = mode;
        job.tables[ITEM as usize].optimizer = Optimizer::Sgd { lr: 0.5, momentum: 0.9, l2: 0.1 };
    })
}

/// Invariant RK-1 in mode `sync`: no bit depends on where a process ends. Rows in memory, and most rows in the cold tier.
#[test]
fn a_step_goes_on_in_the_process_that_follows() {
    for cluster in ["", "memory = \"8MiB\""] {
        let expected = trained(&home(Mode::Sync, cluster), |_, service| service);
        for cut in 1..pushes().len() {
            for with_base in [false, true] {
                let home = home(Mode::Sync, cluster);
                let found = trained(&home, |applied, service| {
                    if applied != cut {
                        return service;
                    }
                    if with_base {
                        write_base(&service);
                    }
                    home.restart(service)
                });
                assert_eq!(found, expected, "the process ends after push {cut}, with a base: {with_base}");
            }
        }
    }
}

/// Mode `hybrid` promises less, and its log has no more than the rows.
#[test]
fn only_sync_pays_for_it() {
    let bytes = |mode| {
        let home = home(mode, "");
        let service = home.start();
        pushes().iter().for_each(|request| _ = push(&service, request).unwrap());
        service.log.as_ref().unwrap().writer.durable_lsn()
    };
    let (sync, hybrid) = (bytes(Mode::Sync), bytes(Mode::Hybrid));
    assert!(sync > hybrid + hybrid / 4, "{sync} bytes in mode sync, {hybrid} in hybrid");
}
