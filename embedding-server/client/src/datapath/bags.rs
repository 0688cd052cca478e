//! Bags: rows of a table of which a batch needs only the sum. Each server sums the rows of a bag that it owns, and the
//! client adds the sums of all servers. The caller divides a sum if it needs a mean (ADR 16).

use zagros_protocol::packed::SegmentBags;

/// What a lookup returns of a table: the rows of its first ids, then the sum of each bag.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableBags {
    /// How many of the first ids have their rows returned.
    direct: u32,
    lengths: Vec<u32>,
    /// The members of all bags in order, as positions in the table's ids.
    members: Vec<u32>,
}

/// The part of a table's bags that one server owns.
#[derive(Debug, Default)]
pub(crate) struct BagShare {
    /// Positions are in the server's ids of the table.
    bags: TableBags,
    /// For each bag, the row of the batch's result that its sum is added to. In ascending order.
    rows: Vec<u32>,
}

impl TableBags {
    pub fn new(direct: u32) -> Self {
        Self { direct, ..Self::default() }
    }

    /// Adds bags. Bag `i` has the members `inverse[offsets[i]..offsets[i + 1]]`, which are positions in the table's
    /// ids. A member that is listed twice counts twice. The sum of an empty bag is zero.
    /// Panics if `offsets` do not divide `inverse`.
    pub fn add_bags(&mut self, inverse: &[u32], offsets: &[u32]) {
        self.lengths.extend(offsets.windows(2).map(|bag| bag[1] - bag[0]));
        let (first, last) = (offsets.first().copied().unwrap_or(0), offsets.last().copied().unwrap_or(0));
        self.members.extend_from_slice(&inverse[first as usize..last as usize]);
    }

    /// How many rows of a result are rows of the table. The sums follow them.
    pub fn direct_rows(&self) -> usize {
        self.direct as usize
    }

    pub fn bag_count(&self) -> usize {
        self.lengths.len()
    }

    pub fn result_rows(&self) -> usize {
        self.direct_rows() + self.bag_count()
    }

    #[cfg(test)]
    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = &[u32]> {
        self.segment_bags(0).iter()
    }

    fn segment_bags(&self, segment: u32) -> SegmentBags<'_> {
        SegmentBags { segment, direct: self.direct, lengths: &self.lengths, members: &self.members }
    }

    /// All bags, for a run with one server. Bags without members are not sent.
    pub(crate) fn whole_share(&self) -> BagShare {
        let filled = |bag: &u32| self.lengths[*bag as usize] > 0;
        let rows = (0..self.lengths.len() as u32).filter(filled).map(|bag| self.direct + bag).collect();
        let lengths = self.lengths.iter().copied().filter(|length| *length > 0).collect();
        BagShare { bags: Self { direct: self.direct, lengths, members: self.members.clone() }, rows }
    }

    /// For each server, the part of each bag that it owns. `positions` lists, for each server, its ids as ascending
    /// positions in the `ids` ids of the table. Each position is in at most one list. A member that is in none is in no share.
    pub(crate) fn split_by_owner(&self, positions: &[Vec<u32>], ids: usize) -> Vec<BagShare> {
        let share = |positions: &Vec<u32>| {
            let direct = positions.partition_point(|position| *position < self.direct) as u32;
            BagShare { bags: Self::new(direct), rows: Vec::new() }
        };
        let mut shares: Vec<BagShare> = positions.iter().map(share).collect();
        let owners = owner_positions(positions, ids);
        let mut rest = &self.members[..];
        for (bag, length) in self.lengths.iter().enumerate() {
            let row = self.direct + bag as u32;
            let (members, after) = rest.split_at(*length as usize);
            rest = after;
            for (owner, position) in members.iter().filter_map(|member| owners[*member as usize]) {
                shares[owner as usize].add_member(row, position);
            }
        }
        shares
    }
}

/// For each position in a table's ids, the owning server and the position in that server's ids.
fn owner_positions(positions: &[Vec<u32>], ids: usize) -> Vec<Option<(u32, u32)>> {
    let mut owners = vec![None; ids];
    for (server, positions) in positions.iter().enumerate() {
        for (there, position) in positions.iter().enumerate() {
            owners[*position as usize] = Some((server as u32, there as u32));
        }
    }
    owners
}

impl BagShare {
    /// The bags come in ascending order.
    #[inline]
    fn add_member(&mut self, row: u32, member: u32) {
        if self.rows.last() != Some(&row) {
            self.rows.push(row);
            self.bags.lengths.push(0);
        }
        let last = self.bags.lengths.len() - 1;
        self.bags.lengths[last] += 1;
        self.bags.members.push(member);
    }

    pub(crate) fn segment_bags(&self, segment: u32) -> SegmentBags<'_> {
        self.bags.segment_bags(segment)
    }

    /// How many rows of the server's answer are rows of the table, and for each sum after them the row of the batch's
    /// result.
    pub(crate) fn into_rows(self) -> (usize, Vec<u32>) {
        (self.bags.direct_rows(), self.rows)
    }
}

/// Bytes of bags on the wire in one direction, without the ids, which are sent in any case. Bag `i` has `offsets[i + 1]
/// − offsets[i]` members, and a row has `row_bytes` bytes. With several servers this is an expectation: the `n` members
/// of a bag are spread over s·(1 − (1 − 1/s)ⁿ) of `s` servers on average, and each of these servers returns one row.
pub fn bag_bytes(offsets: &[u32], row_bytes: usize, servers: u32) -> u64 {
    let lengths = || offsets.windows(2).map(|bag| bag[1] - bag[0]);
    let miss = 1.0 - 1.0 / f64::from(servers.max(1));
    let met = |length: u32| f64::from(servers.max(1)) * (1.0 - miss.powi(length.min(1 << 20) as i32));
    let answers: f64 = lengths().map(met).sum();
    let members: u64 = lengths().map(u64::from).sum();
    4 * members + (answers * (row_bytes + size_of::<u32>()) as f64) as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zagros_zip::ZipEq;

    use super::*;

    fn bags(direct: u32, list: &[&[u32]]) -> TableBags {
        let mut bags = TableBags::new(direct);
        for bag in list {
            bags.add_bags(bag, &[0, bag.len() as u32]);
        }
        bags
    }

    /// The members of each of a server's bags, as positions in the table's ids.
    fn restored(share: &BagShare, positions: &[u32]) -> Vec<(u32, Vec<u32>)> {
        let table = |bag: &[u32]| bag.iter().map(|member| positions[*member as usize]).collect();
        share.rows.iter().copied().zip_eq(share.segment_bags(0).iter().map(table)).collect()
    }

    #[test]
    fn bags_follow_each_other_and_empty_ones_are_not_sent() {
        let mut bags = TableBags::new(2);
        bags.add_bags(&[9, 0, 1, 1], &[1, 3, 3, 4]);
        assert_eq!((bags.direct_rows(), bags.bag_count(), bags.result_rows()), (2, 3, 5));
        let share = bags.whole_share();
        assert_eq!(restored(&share, &[0, 1]), [(2, vec![0, 1]), (4, vec![1])]);
        assert_eq!(share.into_rows(), (2, vec![2, 4]));
    }

    proptest! {
        #[test]
        fn each_member_goes_to_the_owner_of_its_row_in_the_order_of_its_bag(
            // Ids of the last of these owners are not divided.
            owners in prop::collection::vec(0_usize..4, 1..12),
            list in prop::collection::vec(prop::collection::vec(0_u32..12, 0..7), 0..6),
            direct in 0_u32..12,
        ) {
            let rows = owners.len() as u32;
            let list: Vec<Vec<u32>> = list.iter().map(|bag| bag.iter().map(|row| row % rows).collect()).collect();
            let list: Vec<&[u32]> = list.iter().map(|bag| &bag[..]).collect();
            let direct = direct.min(rows);
            let owned = |server| (0..rows).filter(|row| owners[*row as usize] == server).collect::<Vec<u32>>();
            let positions = [owned(0), owned(1), owned(2)];
            let shares = bags(direct, &list).split_by_owner(&positions, owners.len());
            for (server, share) in shares.iter().enumerate() {
                let own = |bag: &&[u32]| bag.iter().copied().filter(|row| owners[*row as usize] == server).collect();
                let all: Vec<(u32, Vec<u32>)> = list.iter().enumerate().map(|(bag, members)| (direct + bag as u32, own(members))).collect();
                let some: Vec<_> = all.into_iter().filter(|(_, bag)| !bag.is_empty()).collect();
                prop_assert_eq!(restored(share, &positions[server]), some);
                let direct = positions[server].iter().filter(|row| **row < direct).count();
                prop_assert_eq!(share.bags.direct_rows(), direct);
            }
        }
    }

    #[test]
    fn the_bytes_of_bags_are_those_of_their_answers_and_members() {
        // Of three bags one is empty. Two rows of 64 bytes, each with a length, and five members are sent.
        assert_eq!(bag_bytes(&[0, 1, 1, 5], 64, 1), 2 * 68 + 5 * 4);
        // One member is on one server. Four members are on 2·(1 − 1/16) servers.
        assert_eq!(bag_bytes(&[0, 1, 1, 5], 64, 2), (68.0 * (1.0 + 1.875)) as u64 + 5 * 4);
        assert_eq!(bag_bytes(&[0], 64, 1), 0);
    }
}
