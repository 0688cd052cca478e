//! The client against fake servers. The number of servers does not matter, and faults lose and repeat nothing.

use futures::FutureExt;
use proptest::prelude::*;
use zagros_fakes::{ScriptedFault, added, row_value};
use zagros_protocol::control::{PlacementResponse, ServerEntry};
use zagros_protocol::{BucketMap, RefusalKind, RowKey, ServerIndex, TableId};
use zagros_zip::ZipEq;

use super::*;
use crate::LookaheadCounts;
use crate::datapath::{TableBags, TableIds, UniqueIds};
use crate::testing::{Cluster, unique_ids, with_bags};

const TIMEOUT: Duration = Duration::from_secs(30);

fn client(cluster: &Cluster) -> EmbeddingClient {
    let config = ClientConfig { writer: 5, incarnation: 1, wire: Encoding::F32, timeout: TIMEOUT };
    EmbeddingClient::new(config, Arc::clone(&cluster.control) as Arc<dyn ControlPlane>, cluster.connect())
}

fn with_client(servers: u32) -> (Cluster, EmbeddingClient) {
    let cluster = Cluster::new(servers);
    let client = client(&cluster);
    (cluster, client)
}

fn some_ids() -> RoutedIds {
    let table = |table, dim| TableIds::new(TableId(table), dim, (0..60).collect());
    UniqueIds { tables: vec![table(0, 2), table(4, 3)] }.into()
}

/// Rows and sums, row-major. A value is a function of table, id and column alone.
fn expected(unique: &UniqueIds) -> BatchRows {
    let table = |table: &TableIds| {
        let row = |id: &u64| {
            let key = RowKey { table: table.table, id: *id };
            (0..table.dim as usize).map(|column| row_value(key, column)).collect::<Vec<_>>()
        };
        let zero = || vec![0.0; table.dim as usize];
        let sum = |bag: Vec<usize>| bag.iter().fold(zero(), |sum, member| added(sum, &row(&table.ids[*member])));
        wanted(table).into_iter().map(sum).collect::<Vec<_>>().concat()
    };
    BatchRows { tables: unique.tables.iter().map(table).collect() }
}

/// For each row of a result, the positions in the table's ids that it sums.
fn wanted(table: &TableIds) -> Vec<Vec<usize>> {
    let direct = table.bags.as_ref().map_or(table.ids.len(), |bags| bags.direct_rows());
    let sums = table.bags.iter().flat_map(|bags| bags.iter().map(|bag| bag.iter().map(|row| *row as usize).collect()));
    (0..direct).map(|row| vec![row]).chain(sums).collect()
}

/// For each id, the gradients of all result rows that contain it.
fn owed(table: &TableIds, gradients: &[f32]) -> Vec<(RowKey, Vec<f32>)> {
    let mut rows = vec![vec![0.0; table.dim as usize]; table.ids.len()];
    for (members, gradient) in wanted(table).iter().zip_eq(gradients.chunks_exact(table.dim as usize)) {
        for member in members {
            rows[*member] = added(std::mem::take(&mut rows[*member]), gradient);
        }
    }
    table.ids.iter().map(|id| RowKey { table: table.table, id: *id }).zip_eq(rows).collect()
}

/// The gradients that reach each row.
type Ledger = std::collections::BTreeMap<RowKey, Vec<Vec<f32>>>;

fn book(ledger: &mut Ledger, unique: &UniqueIds, gradients: &BatchRows) {
    for (table, values) in unique.tables.iter().zip_eq(&gradients.tables) {
        owed(table, values).into_iter().for_each(|(key, gradient)| ledger.entry(key).or_default().push(gradient));
    }
}

fn each_row_has_one_gradient(cluster: &Cluster) -> bool {
    cluster.ledger().values().all(|gradients| gradients.len() == 1)
}

fn fail(cluster: &Cluster, faults: &[(u32, ScriptedFault)]) {
    let servers = cluster.shards.len() as u32;
    faults.iter().for_each(|(server, fault)| cluster.fail(server % servers, [*fault]));
}

/// Runs with paused time, so backoff takes no time.
fn run<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap().block_on(test)
}

fn fault() -> impl Strategy<Value = ScriptedFault> {
    prop_oneof![
        Just(ScriptedFault::LoseAnswer),
        Just(ScriptedFault::Refuse(RefusalKind::Unavailable)),
        Just(ScriptedFault::Refuse(RefusalKind::Deadline)),
        Just(ScriptedFault::Refuse(RefusalKind::Moved)),
    ]
}

/// Buckets that get another owner after a pause, and the time until the other servers know.
#[derive(Clone, Debug)]
struct ScriptedMove {
    pause: Duration,
    buckets: Vec<u32>,
    target: u32,
    late: Duration,
}

fn moves() -> impl Strategy<Value = Vec<ScriptedMove>> {
    let millis = |most: u64| (0..most).prop_map(Duration::from_millis);
    let buckets = prop::collection::btree_set(0_u32..64, 1..64).prop_map(|buckets| buckets.into_iter().collect());
    let one = (millis(120), buckets, 0_u32..7, millis(80));
    let one = one.prop_map(|(pause, buckets, target, late)| ScriptedMove { pause, buckets, target, late });
    prop::collection::vec(one, 0..8)
}

fn fault_or_delay() -> impl Strategy<Value = ScriptedFault> {
    prop_oneof![fault(), (0_u64..100).prop_map(ScriptedFault::Delay)]
}

/// A cluster of seven servers, of which only the first ones own buckets at first.
fn grown(servers: u32, faults: &[(u32, ScriptedFault)]) -> (Cluster, EmbeddingClient) {
    let (cluster, client) = with_client(7);
    let map = BucketMap::split_evenly(Generation(1), 64, servers);
    cluster.shards.iter().for_each(|shard| shard.adopt(map.clone()));
    cluster.announce_owners(&map);
    fail(&cluster, faults);
    (cluster, client)
}

async fn make_moves(cluster: &Cluster, servers: u32, moves: &[ScriptedMove]) {
    let mut map = BucketMap::split_evenly(Generation(1), 64, servers);
    for ScriptedMove { pause, buckets, target, late } in moves {
        tokio::time::sleep(*pause).await;
        cluster.move_buckets(&map, buckets, *target, *late).await;
        map = map.with_moved(buckets, ServerIndex(*target));
    }
}

proptest! {
    /// Invariants DP-2 and DP-3, and ADR 39: whatever moves between and during calls, each gradient reaches its row once, and lookups
    /// get every row.
    #[test]
    fn every_gradient_is_applied_exactly_once_while_buckets_move(
        batches in prop::collection::vec(unique_ids().prop_flat_map(with_bags), 1..6),
        servers in 1_u32..=4,
        moves in moves(),
        faults in prop::collection::vec((0_u32..7, fault_or_delay()), 0..20),
    ) {
        let (cluster, client) = grown(servers, &faults);
        let mut booked = Ledger::new();
        let train = async {
            for (seq, unique) in batches.iter().enumerate() {
                let ids = RoutedIds::from(unique.clone());
                let rows = client.lookup(&ids, Access::Train).await.unwrap();
                assert_eq!(rows, expected(unique));
                client.push(seq as u64, &ids, &rows).await.unwrap();
                book(&mut booked, unique, &rows);
            }
        };
        run(async { tokio::join!(train, make_moves(&cluster, servers, &moves)) });
        prop_assert_eq!(cluster.ledger(), booked);
    }

    /// The window lets several batches be on their way at a time.
    #[test]
    fn batches_in_flight_are_divided_again_and_applied_once(
        batches in prop::collection::vec(unique_ids(), 2..6),
        servers in 1_u32..=4,
        moves in moves(),
        faults in prop::collection::vec((0_u32..7, fault_or_delay()), 0..30),
    ) {
        let (cluster, client) = grown(servers, &faults);
        let all: Vec<_> = batches.iter().map(|unique| (RoutedIds::from(unique.clone()), expected(unique))).collect();
        let pushes = all.iter().enumerate().map(|(seq, (ids, gradients))| client.push(seq as u64, ids, gradients));
        let pushes = futures::future::try_join_all(pushes);
        run(async { tokio::join!(pushes, make_moves(&cluster, servers, &moves)) }).0.unwrap();
        let mut booked = Ledger::new();
        batches.iter().for_each(|unique| book(&mut booked, unique, &expected(unique)));
        let counts =
            |ledger: Ledger| ledger.into_iter().map(|(key, gradients)| (key, gradients.len())).collect::<Vec<_>>();
        prop_assert_eq!(counts(cluster.ledger()), counts(booked));
    }
}

/// The acknowledgement of one part is not asked for again, although its buckets have moved.
#[test]
fn a_part_that_was_acknowledged_is_not_sent_again_under_another_server() {
    let (cluster, client) = grown(2, &[(1, ScriptedFault::Delay(1000))]);
    let unique = some_ids();
    let gradients = expected(&unique);
    let all: Vec<u32> = (0..64).collect();
    run(async {
        let push = client.push(0, &unique, &gradients).map(Result::unwrap);
        let move_all = async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            cluster.move_buckets(&BucketMap::split_evenly(Generation(1), 64, 2), &all, 2, Duration::ZERO).await;
        };
        tokio::join!(push, move_all)
    });
    assert_eq!([0, 1, 2].map(|server| cluster.shards[server].pushes()), [1, 1, 1]);
    assert!(each_row_has_one_gradient(&cluster));
}

#[test]
fn storage_calls_begin_with_the_servers_of_the_newest_map() {
    let (cluster, client) = grown(2, &[]);
    run(async {
        client.lookup(&some_ids(), Access::Train).await.unwrap();
        cluster.announce_owners(&BucketMap::split_evenly(Generation(2), 64, 3));
        assert_eq!(client.known_servers().len(), 2);
        assert_eq!(client.newest_servers().await.unwrap().len(), 3);
        cluster.control.placement.disconnect();
        assert_eq!(client.newest_servers().await.unwrap()[2].name(), "embedding server 2 (fake)");
    });
}

#[test]
fn narrow_wires_carry_the_same_rows() {
    for wire in [Encoding::F16, Encoding::Bf16] {
        let (_cluster, mut client) = with_client(3);
        client.config.wire = wire;
        let ids = some_ids();
        assert_eq!(run(client.lookup(&ids, Access::Read)).unwrap(), expected(&ids));
        let report = run(client.push(0, &ids, &expected(&ids))).unwrap();
        assert_eq!(report, PushAcknowledgement { servers: 3, duplicates: 0, bytes: 2 * 60 * (2 + 3) });
    }
}

#[test]
fn a_lost_acknowledgement_is_reported_as_a_duplicate() {
    let cluster = Cluster::new(2);
    cluster.fail(1, [ScriptedFault::LoseAnswer]);
    let unique = some_ids();
    let report = run(client(&cluster).push(0, &unique, &expected(&unique))).unwrap();
    assert_eq!((report.servers, report.duplicates), (2, 1));
    assert!(each_row_has_one_gradient(&cluster));
}

const AWAY: ScriptedFault = ScriptedFault::Refuse(RefusalKind::Unavailable);

/// Invariant WT-1: if a server hangs, a call still ends within the client's timeout and names the server.
#[test]
fn a_call_that_fails_names_the_server_the_reason_and_the_time_waited() {
    let late = ScriptedFault::Refuse(RefusalKind::Deadline);
    let invalid = ScriptedFault::Refuse(RefusalKind::Invalid);
    let at_server = "could not look up rows at embedding server 1 (fake)";
    let cases = [
        (vec![AWAY; 1000], TIMEOUT..=2 * TIMEOUT, " for 30.0s: scripted fault"),
        ([vec![AWAY; 5], vec![ScriptedFault::Hang]].concat(), TIMEOUT..=TIMEOUT, " for 30.0s: no answer within"),
        // A server stops waiting a little before the timeout and says what for. The tries after that are cut short.
        (vec![late, ScriptedFault::Hang], TIMEOUT..=2 * TIMEOUT, " for 30.0s: scripted fault"),
        // A final refusal is not repeated.
        (vec![invalid], Duration::ZERO..=TIMEOUT / 2, ": scripted fault"),
    ];
    for (faults, expected_wait, expected) in cases {
        let (cluster, client) = with_client(3);
        let (error, waited) = run(async {
            client.refresh_placement().await.unwrap();
            cluster.fail(1, faults);
            let started = tokio::time::Instant::now();
            let error = client.lookup(&some_ids(), Access::Train).await.unwrap_err().to_string();
            (error, started.elapsed())
        });
        assert!(error.starts_with(&format!("{at_server}{expected}")), "{error}");
        assert!(expected_wait.contains(&waited), "{waited:?}: {error}");
    }
}

#[test]
fn many_calls_wait_for_a_silent_coordinator_together() {
    let (cluster, client) = with_client(4);
    let waited = run(async {
        client.refresh_placement().await.unwrap();
        cluster.control.hang(u32::MAX);
        (0..4).for_each(|server| cluster.fail(server, [AWAY; 1000]));
        let started = tokio::time::Instant::now();
        let (unique, other) = (some_ids(), some_ids());
        let calls = [client.lookup(&unique, Access::Train), client.lookup(&other, Access::Train)];
        for failed in futures::future::join_all(calls).await {
            let error = failed.unwrap_err().to_string();
            assert!(error.contains("(fake) for 30.0s: scripted fault"), "{error}");
        }
        started.elapsed()
    });
    assert_eq!(waited, TIMEOUT);
}

#[test]
fn a_restarted_server_ends_the_call_with_the_loss_named() {
    let (cluster, client) = with_client(2);
    let error = run(async {
        client.refresh_placement().await.unwrap();
        cluster.announce(2, |entry| ServerEntry { instance: 100 + u64::from(entry.index), ..entry });
        cluster.shards.iter().for_each(|shard| shard.set_generation(2));
        let unique = some_ids();
        client.push(1, &unique, &expected(&unique)).await.unwrap_err()
    });
    assert!(matches!(error, ClientError::ServerRestarted { index: 1, .. }), "{error}");
    assert!(cluster.ledger().is_empty(), "a server of the new generation took a push of the old one");
}

#[test]
fn a_coordinator_that_is_away_does_not_stop_the_data_path() {
    let (cluster, client) = with_client(2);
    let rows = run(async {
        client.refresh_placement().await.unwrap();
        cluster.control.placement.disconnect();
        cluster.fail(0, [AWAY]);
        client.lookup(&some_ids(), Access::Train).await.unwrap()
    });
    assert_eq!(rows, expected(&some_ids()));
}

#[test]
fn without_a_placement_the_coordinators_reason_is_reported() {
    let (cluster, client) = with_client(1);
    let waiting_for = "embedding server 0 has not joined".to_owned();
    let none = PlacementResponse { waiting_for, ..PlacementResponse::default() };
    cluster.control.placement.respond(none);
    let error = run(client.lookup(&some_ids(), Access::Train)).unwrap_err().to_string();
    assert!(error.contains("coordinator (fake) after 30.0s: embedding server 0 has not joined"), "{error}");
    assert!(client.known_servers().is_empty());
}

#[test]
fn gradients_of_the_wrong_shape_are_not_sent() {
    let (cluster, client) = with_client(2);
    let unique = some_ids();
    let mut short = expected(&unique);
    short.tables[1].pop();
    let error = run(client.push(0, &unique, &short)).unwrap_err();
    assert_eq!(error.to_string(), "gradients of table 4: expected 180 values, found 179");
    short.tables.pop();
    assert!(matches!(run(client.push(0, &unique, &short)), Err(ClientError::GradientShape { .. })));
    assert!(cluster.ledger().is_empty());
}

fn assert_shows(registry: &prometheus::Registry, line: &str) {
    let text = zagros_plumbing::metrics::render_text(registry);
    assert!(text.contains(&format!("zagros_client_{line}")), "{line} is not in\n{text}");
}

#[test]
fn sums_and_the_bytes_that_they_save_are_measured() {
    let cluster = Cluster::new(1);
    let registry = prometheus::Registry::new();
    let client = client(&cluster).with_metrics(&registry);
    let mut unique = UniqueIds::clone(&some_ids());
    let members: Vec<u32> = (0..60).collect();
    let mut bags = TableBags::new(0);
    bags.add_bags(&members, &[0, 30, 30, 60]);
    unique.tables[1].bags = Some(bags);
    run(client.lookup(&unique.into(), Access::Train)).unwrap();
    // Two sums replace 60 rows of 12 bytes. They cost a count, a head, two lengths and 60 members.
    let spared = 58 * 12 - 4 * (1 + 4 + 2 + 60);
    assert_shows(&registry, &format!("bags_spared_bytes{{call=\"lookup\"}} {spared}"));
    assert_shows(&registry, r#"bags_total{call="lookup"} 2"#);
    assert_shows(&registry, r#"bags_total{call="push"} 0"#);
}

#[test]
fn traffic_is_measured() {
    let cluster = Cluster::new(2);
    cluster.fail(0, [AWAY]);
    let registry = prometheus::Registry::new();
    let client = client(&cluster).with_metrics(&registry);
    run(client.lookup(&some_ids(), Access::Train)).unwrap();
    let (retries, bytes) = (r#"retries_total{call="lookup"} 1"#, r#"bytes_total{call="lookup"} 1200"#);
    for line in [retries, bytes, "lookup_seconds_count 1"] {
        assert_shows(&registry, line);
    }
}

#[test]
fn a_hint_reaches_the_owners_of_its_ids_once_and_no_failure_matters() {
    run(async {
        let (cluster, client) = with_client(3);
        let ids = some_ids();
        assert!(client.hint(&ids).is_none(), "the servers are not known yet");
        client.refresh_placement().await.unwrap();
        client.hint(&ids).unwrap().await;
        let hinted: Vec<u64> = cluster.shards.iter().flat_map(|shard| shard.hinted.lock().unwrap().concat()).collect();
        assert_eq!(hinted.len(), 120);
        assert_eq!(client.lookahead_counts(), LookaheadCounts { hinted: 120, ..LookaheadCounts::default() });
        assert_eq!(client.lookup(&ids, Access::Train).await.unwrap(), expected(&ids));
    });
}

#[test]
fn a_hint_that_no_server_answers_ends_and_is_counted() {
    run(async {
        let control = Arc::new(zagros_fakes::FakeControlPlane::default());
        let shard: Arc<dyn Shard> = Arc::new(zagros_fakes::FakeShard::default().hanging());
        let config = ClientConfig { writer: 5, incarnation: 1, wire: Encoding::F32, timeout: TIMEOUT };
        let client = EmbeddingClient::new(config, control, Arc::new(move |_: &_| Ok(Arc::clone(&shard))));
        client.refresh_placement().await.unwrap();
        client.hint(&some_ids()).unwrap().await;
        assert_eq!(client.lookahead_counts(), LookaheadCounts { lost: 120, ..LookaheadCounts::default() });
    });
}
