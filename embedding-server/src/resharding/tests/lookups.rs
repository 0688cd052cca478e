//! A writer whose tables count ids before they admit them: it looks rows up until they are there.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use zagros_protocol::datapath::{Access, LookupRequest};
use zagros_protocol::packed::decode_values;
use zagros_protocol::{RefusalKind, RowKey, TableId};

use super::cluster::{Cluster, TableKind};
use super::pushes::Row;
use crate::testing::{DIM, lookup_of};

/// The training lookups that counted each id before it had a row. `None` once it is not known: an answer was late.
#[derive(Debug, Default)]
pub(super) struct Uses(BTreeMap<Row, Option<u32>>);

impl Uses {
    /// Looks up for training until every row is there. Checks how many lookups it takes, unless servers die.
    pub(super) async fn admit(&mut self, cluster: &Arc<Cluster>, rows: &[Row]) {
        let mut left = rows.to_vec();
        let mut tries = 0;
        while !left.is_empty() {
            for part in by_owner(cluster, &left) {
                let found = look_up(cluster, &part, Access::Train).await;
                for (place, row) in part.rows.iter().enumerate() {
                    let uses = self.0.entry(*row).or_insert(Some(0));
                    *uses = uses.filter(|_| found != Found::Late).map(|uses| uses + u32::from(found != Found::Refused));
                    if found.has(place) {
                        left.retain(|other| other != row);
                        self.check(cluster, *row);
                    }
                }
            }
            tries += 1;
            assert!(tries < 20_000, "{left:?} are never admitted");
            tokio::time::sleep(Duration::from_millis(u64::from(tries > 100))).await;
        }
    }

    /// An id that was admitted is not counted any more.
    fn check(&mut self, cluster: &Cluster, row: Row) {
        let (uses, most) = (self.0.insert(row, None).flatten(), cluster.kind.threshold().expect("it counts"));
        let Some(uses) = uses.filter(|_| !cluster.kills()) else { return };
        match cluster.kind {
            TableKind::Counted => assert_eq!(uses, most, "row {row:?} was admitted at another use"),
            _ => assert!((1..=most).contains(&uses), "row {row:?} was admitted at use {uses}"),
        }
    }
}

/// Whether every row is there. Counts nothing.
pub(super) async fn are_there(cluster: &Arc<Cluster>, rows: &[Row]) -> bool {
    for part in by_owner(cluster, rows) {
        let found = look_up(cluster, &part, Access::Read).await;
        if !(0..part.rows.len()).all(|place| found.has(place)) {
            return false;
        }
    }
    true
}

/// The rows of one server.
pub(super) struct Part {
    pub(super) owner: u32,
    pub(super) generation: u64,
    /// Those of table 0 come first.
    pub(super) rows: Vec<Row>,
}

impl Part {
    pub(super) fn ids(&self) -> [Vec<u64>; 2] {
        [0, 1].map(|table| self.rows.iter().filter(|row| row.0 == table).map(|row| row.1).collect())
    }
}

#[derive(Debug, PartialEq)]
enum Found {
    Rows(Vec<f32>),
    /// Nothing was counted.
    Refused,
    /// It may have been counted.
    Late,
}

impl Found {
    /// Whether the row at this place is there: its first weights are not 0, and rows that are not there are.
    fn has(&self, place: usize) -> bool {
        let Self::Rows(values) = self else { return false };
        values[place * DIM as usize..][..DIM as usize].iter().any(|value| *value != 0.0)
    }
}

pub(super) fn by_owner(cluster: &Cluster, rows: &[Row]) -> Vec<Part> {
    let map = cluster.map();
    let mut parts = BTreeMap::<u32, Vec<Row>>::new();
    for row in rows {
        parts.entry(map.row_owner(RowKey { table: TableId(row.0), id: row.1 }).0).or_default().push(*row);
    }
    let part = |(owner, mut rows): (u32, Vec<Row>)| {
        rows.sort_unstable();
        Part { owner, generation: map.generation().0, rows }
    };
    parts.into_iter().map(part).collect()
}

async fn look_up(cluster: &Cluster, part: &Part, access: Access) -> Found {
    let [users, items] = part.ids();
    let request = lookup_of(&[(0, &users), (1, &items)], access);
    match cluster.look_up(part.owner, LookupRequest { generation: part.generation, ..request }).await {
        Ok(answer) => {
            let mut values = vec![f32::NAN; answer.rows.len() / 4];
            decode_values(&answer.rows, answer.encoding, &mut values).unwrap();
            Found::Rows(values)
        }
        Err(refusal) if refusal.kind == RefusalKind::Deadline => Found::Late,
        Err(refusal) => {
            let kinds = [RefusalKind::Moved, RefusalKind::Unavailable];
            assert!(kinds.contains(&refusal.kind), "{refusal}");
            Found::Refused
        }
    }
}
