//! The placement: which server owns which bucket, and the address of each server.
//!
//! A generation is of the bucket map. A server that comes back with its rows changes its address and its instance within a
//! generation: requests that are under way at other servers stay valid.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use zagros_protocol::control::{BucketMove, PlacementResponse, ServerEntry, Writer};
use zagros_protocol::{BucketMap, Generation, Lineage, ServerIndex};

use crate::MemberSlot;
use crate::roster::Roster;

/// The placement of a run. Owners are decided when every server has joined for the first time. A later generation says that
/// buckets have moved, or that a server is another process, without the rows of the process before.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ServerPlacement {
    server_count: u32,
    buckets: u32,
    pub(crate) addresses: BTreeMap<u32, ServerAddress>,
    map: Option<BucketMap>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ServerAddress {
    pub(crate) address: String,
    pub(crate) instance: u64,
    /// Which log holds its rows.
    pub(crate) lineage: Option<Lineage>,
}

impl ServerPlacement {
    pub(crate) fn new(servers: u32, buckets: u32) -> Self {
        Self { server_count: servers, buckets, addresses: BTreeMap::new(), map: None }
    }

    /// Returns the new generation if this creates or changes the placement.
    pub(crate) fn set_address(&mut self, index: u32, address: ServerAddress) -> Option<Generation> {
        let is_new = self.addresses.get(&index) != Some(&address);
        self.addresses.insert(index, address);
        let next = match &self.map {
            None if self.missing_servers().next().is_none() => {
                BucketMap::split_evenly(Generation::NONE.next(), self.buckets, self.server_count)
            }
            Some(map) if is_new && owns_any(map, index) => map.at_generation(map.generation().next()),
            None | Some(_) => return None,
        };
        Some(self.map.insert(next).generation())
    }

    /// Returns the new generation; `None` before the first placement.
    pub(crate) fn move_buckets(&mut self, buckets: &[u32], owner: u32) -> Option<Generation> {
        let next = self.map.as_ref()?.with_moved(buckets, ServerIndex(owner));
        Some(self.map.insert(next).generation())
    }

    /// Whether a server owns a bucket, or will once there are owners.
    pub(crate) fn owns_bucket(&self, index: u32) -> bool {
        self.bucket_map().is_none_or(|map| owns_any(map, index))
    }

    /// The placement as members get it: owners, servers, who may push, and what is waited for.
    pub(crate) fn placement_response(&self, roster: Roster<'_>, bucket_move: Option<BucketMove>) -> PlacementResponse {
        let run = roster.config.run.0;
        // A server that owns nothing yet is named once it does: the indices of the named ones have no gap.
        let servers = self.bucket_map().map_or(u32::MAX, BucketMap::server_count);
        let entry = |(index, server): (&u32, &ServerAddress)| ServerEntry {
            index: *index,
            address: server.address.clone(),
            instance: server.instance,
            alive: roster.members.alive_member(MemberSlot::server(*index)).is_some(),
            run,
            lineage: server.lineage.map_or(0, |lineage| lineage.0),
        };
        let writer = |(slot, incarnation): (MemberSlot, u32)| Writer { member: slot.member_id(), incarnation };
        PlacementResponse {
            generation: self.generation().0,
            owners: self.bucket_map().map(BucketMap::pack_owners).unwrap_or_default().into(),
            servers: self.addresses.range(..servers).map(entry).collect(),
            waiting_for: roster.missing_servers().unwrap_or_default(),
            writers: roster.members.writer_incarnations().map(writer).collect(),
            bucket_move,
        }
    }

    /// [`Generation::NONE`] before the first placement.
    pub(crate) fn generation(&self) -> Generation {
        self.map.as_ref().map_or(Generation::NONE, BucketMap::generation)
    }

    pub(crate) fn bucket_map(&self) -> Option<&BucketMap> {
        self.map.as_ref()
    }

    /// Servers that have never joined.
    pub(crate) fn missing_servers(&self) -> impl Iterator<Item = u32> {
        (0..self.server_count).filter(|index| !self.addresses.contains_key(index))
    }
}

fn owns_any(map: &BucketMap, index: u32) -> bool {
    (0..map.bucket_count()).any(|bucket| map.bucket_owner(bucket) == Some(ServerIndex(index)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn address(port: u32, instance: u64) -> ServerAddress {
        ServerAddress { address: format!("127.0.0.1:{port}"), instance, lineage: None }
    }

    #[test]
    fn the_first_generation_waits_for_every_server() {
        let mut placement = ServerPlacement::new(2, 64);
        assert_eq!(placement.set_address(1, address(1, 11)), None);
        assert_eq!(placement.set_address(1, address(2, 12)), None, "a restart before the first placement");
        assert_eq!(placement.missing_servers().collect::<Vec<_>>(), [0]);
        assert_eq!(placement.set_address(0, address(0, 10)), Some(Generation(1)));
        assert_eq!(placement.bucket_map(), Some(&BucketMap::split_evenly(Generation(1), 64, 2)));
    }

    #[test]
    fn another_process_or_address_is_a_new_generation_and_the_same_process_is_not() {
        let mut placement = ServerPlacement::new(1, 64);
        placement.set_address(0, address(0, 10));
        assert_eq!(placement.set_address(0, address(0, 10)), None);
        assert_eq!(placement.set_address(0, address(0, 11)), Some(Generation(2)));
        assert_eq!(placement.set_address(0, address(9, 11)), Some(Generation(3)));
    }

    proptest! {
        #[test]
        fn generations_only_rise_and_owners_never_move(
            servers in 1_u32..6, joins in prop::collection::vec((0_u32..6, 0_u32..3, 0_u64..3), 0..60)
        ) {
            let mut placement = ServerPlacement::new(servers, 97);
            for (index, port, instance) in joins {
                let (earlier, known) = (placement.generation(), placement.bucket_map().cloned());
                let announced = placement.set_address(index % servers, address(port, instance));
                let generation = placement.generation();
                prop_assert!(generation >= earlier);
                prop_assert_eq!(announced.is_some(), earlier < generation);
                if let Some(map) = known {
                    prop_assert_eq!(placement.bucket_map(), Some(&map.at_generation(generation)));
                }
            }
        }
    }
}
