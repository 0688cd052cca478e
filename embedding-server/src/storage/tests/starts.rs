//! Loads of another run's model, from which a run starts.

use super::*;

#[test]
fn tables_that_begin_anew_take_nothing_of_another_runs_files() {
    let saved = trained(2);
    let (folder, files) = save_anew(&saved);
    let request = |other_run: bool, anew: &str| LoadRequest {
        other_run,
        anew: vec![anew.to_owned()],
        ..load_request(folder.path(), unchecked(&files))
    };
    for servers in [1, 3] {
        let started: Vec<_> = (0..servers).map(|index| placed(servers, index)).collect();
        let name = &started[0].names[0];
        let loaded = started.iter().map(|service| storage::load(service, &request(true, name)).unwrap());
        let loaded: Vec<_> = loaded.collect();
        assert_eq!(loaded.iter().map(|loaded| loaded.rows).sum::<u64>(), IDS, "{servers} servers");
        assert!(loaded.iter().all(|loaded| loaded.dropped == [name.clone()]));
        let of_second: Content = content(&saved).into_iter().filter(|((table, _), _)| *table == 1).collect();
        assert_eq!(content(&started), of_second);
        // Of a checkpoint every table is taken.
        started.iter().for_each(|service| drop(storage::load(service, &request(false, name)).unwrap()));
        assert_eq!(content(&started), content(&saved));
    }
}

/// Memory is full of a model's rows when the run begins. Those that the run does not use leave, not those that it trains.
#[test]
fn rows_that_a_run_trains_outlive_rows_of_its_model_that_it_does_not_use() {
    let (user, item) = (0, 1);
    for order in [EvictionOrder::Lru, EvictionOrder::Lfu { half_life: 64 }] {
        let mut job = job_with(1, "memory = \"256KiB\"");
        job.tables.iter_mut().for_each(|table| {
            (table.eviction.order, table.eviction.target) = (order, EvictionTarget::Drop);
        });
        let saved = placed_with(&job);
        saved.tables.advance_clock(10_000, 0);
        let ids: Vec<u64> = (0..20_000).collect();
        for ids in ids.chunks(1000) {
            testing::lookup(&saved, &lookup_of(&[(user, ids), (item, ids)], Access::Train)).unwrap();
        }
        saved.tables.advance_clock(20_000, 0);
        let (folder, files) = save_anew(std::slice::from_ref(&saved));
        let request = load_request(folder.path(), unchecked(&files));
        let service = placed_with(&job);
        storage::load(&service, &LoadRequest { restart_steps: true, other_run: true, ..request }).unwrap();
        // 20 new rows a step, which are fewer than memory holds.
        for step in 1..=20 {
            let own: Vec<u64> = (0..20).map(|row| 1_000_000 + 20 * step + row).collect();
            testing::lookup(&service, &lookup_of(&[(item, &own)], Access::Train)).unwrap();
            testing::push(&service, &push_of(&[(item, &own)], step, 0.5)).unwrap();
        }
        let rows = content(std::slice::from_ref(&service));
        let kept = (1_000_020..1_000_420).filter(|id| rows.contains_key(&(item, *id))).count();
        assert_eq!(kept, 400, "{order:?}: rows that the run trained were dropped");
    }
}
