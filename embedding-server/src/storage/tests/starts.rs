//! Loads of another run's model, from which a run starts.

use super::*;

#[test]
fn tables_that_begin_anew_take_nothing_of_another_runs_files() {
    let folder = tempfile::tempdir().unwrap();
    let saved = trained(2);
    let files = save(&saved, folder.path());
    let names: Vec<String> = files.clone();
    let request = |other_run: bool, anew: &str| LoadRequest {
        folder: folder.path().display().to_string(),
        files: names.iter().map(|name| FileDigest { name: name.clone(), ..FileDigest::default() }).collect(),
        replace: true,
        other_run,
        anew: vec![anew.to_owned()],
        ..LoadRequest::default()
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
