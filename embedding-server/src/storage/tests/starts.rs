//! Loads of another run's model, from which a run starts: tables that begin anew, and weights of another number format.

use std::collections::BTreeMap;

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

/// The second table has weights of this format.
fn services_with(servers: u32, element: WeightType) -> Vec<Arc<EmbeddingService>> {
    changed(servers, |job| job.tables[1].element = element)
}

fn start_from(service: &EmbeddingService, folder: &Path, files: &[String]) -> Result<u64, Refusal> {
    let request = LoadRequest { other_run: true, ..load_request(folder, unchecked(files)) };
    storage::load(service, &request).map(|response| response.rows)
}

/// The weights of each row of the second table, and its other words.
fn items(services: &[Arc<EmbeddingService>], element: WeightType) -> BTreeMap<u64, (Vec<f32>, Vec<u32>)> {
    let dim = DIM as usize;
    let row = |((table, id), (slot, _)): ((u32, u64), (Vec<u32>, _))| {
        let mut weights = vec![0.0; dim];
        element.decode(&slot, &mut weights);
        (table == 1).then(|| (id, (weights, slot[element.words(dim)..].to_vec())))
    };
    content(services).into_iter().filter_map(row).collect()
}

#[test]
fn a_run_that_starts_from_a_model_rounds_its_rows_and_keeps_their_state() {
    for from in WeightType::ALL {
        let saved = services_with(2, from);
        for service in &saved {
            let [users, ours] = own(service, 0..IDS);
            testing::push(service, &push_of(&[(0, &users), (1, &ours)], 1, 0.5)).unwrap();
        }
        let (folder, files) = save_anew(&saved);
        for element in WeightType::ALL {
            let started = services_with(3, element);
            let rows: u64 = started.iter().map(|service| start_from(service, folder.path(), &files).unwrap()).sum();
            assert_eq!(rows, 2 * IDS);
            let users = |services: &[Arc<EmbeddingService>]| -> Content {
                content(services).into_iter().filter(|((table, _), _)| *table == 0).collect()
            };
            assert_eq!(users(&started), users(&saved));
            let mut expected = items(&saved, from);
            if from != element {
                expected.values_mut().for_each(|(weights, _)| element.round_nearest(weights));
            }
            assert_eq!(items(&started, element), expected, "{} → {}", from.name(), element.name());
        }
    }
}

#[test]
fn a_row_that_the_format_cannot_hold_is_refused_by_table_and_id() {
    let service = services_with(1, WeightType::F32).swap_remove(0);
    testing::push(&service, &push_of(&[(1, &[7])], 1, 1e9)).unwrap();
    let (folder, files) = save_anew(std::slice::from_ref(&service));
    for element in [WeightType::Bf16, WeightType::Int8] {
        start_from(&services_with(1, element)[0], folder.path(), &files).unwrap();
    }
    let refused = start_from(&services_with(1, WeightType::F16)[0], folder.path(), &files).unwrap_err();
    assert_eq!(refused.kind, RefusalKind::Invalid);
    assert!(refused.message.contains("row 0x0000000000000007 of table `item` has the weight"), "{refused}");
    assert!(refused.message.contains("which f16 cannot hold"), "{refused}");
}
