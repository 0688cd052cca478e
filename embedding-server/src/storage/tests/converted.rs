//! Rows with narrow weights, and loads of another run's model whose weights are in another number format.

use std::collections::BTreeMap;

use super::*;

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
fn a_run_that_resumes_converts_nothing() {
    let (folder, files) = save_anew(&trained(1));
    let refused = load(&services_with(1, WeightType::Int8)[0], folder.path(), &files).unwrap_err();
    assert_eq!(refused.kind, RefusalKind::Invalid);
    assert!(refused.message.contains("of f32 with 4 words of sgd a row there, and dim 4 of int8"), "{refused}");
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
