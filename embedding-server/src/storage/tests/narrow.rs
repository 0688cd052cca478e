//! Rows with narrow weights.

use zagros_job::{Job, WeightType};

use super::{IDS, changed, content, loaded, own, push_of, save};
use crate::testing::{self, DIM};

#[test]
fn narrow_rows_come_back_on_any_number_of_servers() {
    fn narrow(job: &mut Job) {
        (job.tables[0].element, job.tables[1].element) = (WeightType::Int8, WeightType::Bf16);
    }
    let saved = changed(2, narrow);
    for service in &saved {
        let [users, items] = own(service, 0..IDS);
        testing::push(service, &push_of(&[(0, &users), (1, &items)], 1, 0.5)).unwrap();
    }
    let folder = tempfile::tempdir().unwrap();
    let files = save(&saved, folder.path());
    let saved_content = content(&saved);
    // A word with the scale, one with four codes, and the state.
    assert_eq!((saved_content[&(0, 7)].0.len(), saved_content[&(1, 7)].0.len()), (2 + DIM as usize, 2));
    for servers in [1, 2, 5] {
        assert_eq!(content(&loaded(folder.path(), &files, servers, narrow)), saved_content, "{servers} servers");
    }
}
