//! Bags: rows of a table that a batch wants only in sums. Servers add up what they own of a bag, the client adds up
//! their answers; what a sum is divided by is the caller's business (ADR 16).

use zagros_protocol::packed::SegmentBags;

/// What is wanted of a table: the rows of its first ids themselves, and the sum of each bag.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bags {
    /// Rows that are wanted themselves: those of the first so many ids.
    direct: u32,
    lengths: Vec<u32>,
    /// Bag after bag, positions in the table's ids.
    members: Vec<u32>,
}

/// One server's share of a table's bags.
#[derive(Debug, Default)]
pub(crate) struct BagShare {
    /// Of the server's rows of the table, how many are wanted themselves.
    direct: u32,
    lengths: Vec<u32>,
    /// Positions in the server's ids of the table.
    members: Vec<u32>,
    /// The row of the batch's answer that each bag is a part of; ascending.
    rows: Vec<u32>,
}

impl Bags {
    /// No bags yet.
    #[must_use]
    pub fn new(direct: u32) -> Self {
        Self { direct, ..Self::default() }
    }

    /// Adds bags that lie one after the other: bag `i` has the members `inverse[offsets[i]..offsets[i + 1]]`,
    /// positions in the table's ids. A member counts as often as it is there; the sum of an empty bag is zero.
    ///
    /// # Panics
    /// When `offsets` do not divide `inverse`.
    pub fn extend(&mut self, inverse: &[u32], offsets: &[u32]) {
        self.lengths.extend(offsets.windows(2).map(|bag| bag[1] - bag[0]));
        let (first, last) = (offsets.first().copied().unwrap_or(0), offsets.last().copied().unwrap_or(0));
        self.members.extend_from_slice(&inverse[first as usize..last as usize]);
    }

    /// Rows of an answer that are rows of the table; the sums follow.
    #[must_use]
    pub fn direct(&self) -> usize {
        self.direct as usize
    }

    /// How many bags.
    #[must_use]
    pub fn count(&self) -> usize {
        self.lengths.len()
    }

    /// Rows of an answer.
    #[must_use]
    pub fn wanted(&self) -> usize {
        self.direct() + self.count()
    }

    /// The members of each bag, as positions in the table's ids.
    #[cfg(test)]
    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = &[u32]> {
        SegmentBags { segment: 0, direct: self.direct, lengths: &self.lengths, members: &self.members }.iter()
    }

    /// All of it, for the only server there is. Nothing is asked for bags without members.
    pub(crate) fn whole(&self) -> BagShare {
        let filled = |bag: &u32| self.lengths[*bag as usize] > 0;
        let rows = (0..self.lengths.len() as u32).filter(filled).map(|bag| self.direct + bag).collect();
        let lengths = self.lengths.iter().copied().filter(|length| *length > 0).collect();
        BagShare { direct: self.direct, lengths, members: self.members.clone(), rows }
    }

    /// Per server, what it owns of each bag. `positions` are each server's ids as ascending positions in the
    /// table's: together each position once.
    pub(crate) fn split(&self, positions: &[Vec<u32>]) -> Vec<BagShare> {
        let share = |positions: &Vec<u32>| {
            let direct = positions.partition_point(|position| *position < self.direct) as u32;
            BagShare { direct, ..BagShare::default() }
        };
        let mut shares: Vec<BagShare> = positions.iter().map(share).collect();
        let owners = owners(positions);
        let mut rest = &self.members[..];
        for (bag, length) in self.lengths.iter().enumerate() {
            let row = self.direct + bag as u32;
            let (members, after) = rest.split_at(*length as usize);
            rest = after;
            for member in members {
                let (owner, position) = owners[*member as usize];
                shares[owner as usize].add(row, position);
            }
        }
        shares
    }
}

/// For each position of a table, the server that owns it and its position there.
fn owners(positions: &[Vec<u32>]) -> Vec<(u32, u32)> {
    let mut owners = vec![(0, 0); positions.iter().map(Vec::len).sum()];
    for (server, positions) in positions.iter().enumerate() {
        for (there, position) in positions.iter().enumerate() {
            owners[*position as usize] = (server as u32, there as u32);
        }
    }
    owners
}

impl BagShare {
    /// Bags come in ascending order.
    #[inline]
    fn add(&mut self, row: u32, member: u32) {
        if self.rows.last() != Some(&row) {
            self.rows.push(row);
            self.lengths.push(0);
        }
        let last = self.lengths.len() - 1;
        self.lengths[last] += 1;
        self.members.push(member);
    }

    /// As the wire has it.
    pub(crate) fn of(&self, segment: u32) -> SegmentBags<'_> {
        SegmentBags { segment, direct: self.direct, lengths: &self.lengths, members: &self.members }
    }

    /// Rows of the server's answer that are rows of the table, and the rows of the batch's answer that the sums after
    /// them are parts of.
    pub(crate) fn into_rows(self) -> (usize, Vec<u32>) {
        (self.direct as usize, self.rows)
    }
}

/// Bytes that bags cost on the wire in one direction, besides the ids, which are sent either way. Bag `i` has
/// `offsets[i + 1] − offsets[i]` members, a row `row_bytes`. Over several servers it is an expectation: a bag of `n`
/// members that hash evenly to `s` servers has some on s·(1 − (1 − 1/s)ⁿ) of them, and each answers a row.
#[must_use]
pub fn bag_bytes(offsets: &[u32], row_bytes: usize, servers: u32) -> u64 {
    let lengths = || offsets.windows(2).map(|bag| bag[1] - bag[0]);
    let without = 1.0 - 1.0 / f64::from(servers.max(1));
    let met = |length: u32| f64::from(servers.max(1)) * (1.0 - without.powi(length.min(1 << 20) as i32));
    let answers: f64 = lengths().map(met).sum();
    let members: u64 = lengths().map(u64::from).sum();
    4 * members + (answers * (row_bytes + size_of::<u32>()) as f64) as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zagros_zip::ZipEq;

    use super::*;

    fn bags(direct: u32, list: &[&[u32]]) -> Bags {
        let mut bags = Bags::new(direct);
        for bag in list {
            bags.extend(bag, &[0, bag.len() as u32]);
        }
        bags
    }

    /// The members of each of a server's bags, as positions of the table.
    fn restored(share: &BagShare, positions: &[u32]) -> Vec<(u32, Vec<u32>)> {
        let table = |bag: &[u32]| bag.iter().map(|member| positions[*member as usize]).collect();
        share.rows.iter().copied().zip_eq(share.of(0).iter().map(table)).collect()
    }

    #[test]
    fn bags_follow_each_other_and_empty_ones_are_not_sent() {
        let mut bags = Bags::new(2);
        bags.extend(&[9, 0, 1, 1], &[1, 3, 3, 4]);
        assert_eq!((bags.direct(), bags.count(), bags.wanted()), (2, 3, 5));
        let share = bags.whole();
        assert_eq!(restored(&share, &[0, 1]), [(2, vec![0, 1]), (4, vec![1])]);
        assert_eq!(share.into_rows(), (2, vec![2, 4]));
    }

    proptest! {
        #[test]
        fn each_member_goes_to_the_owner_of_its_row_in_the_order_of_its_bag(
            owners in prop::collection::vec(0_usize..3, 1..12),
            list in prop::collection::vec(prop::collection::vec(0_u32..12, 0..7), 0..6),
            direct in 0_u32..12,
        ) {
            let rows = owners.len() as u32;
            let list: Vec<Vec<u32>> = list.iter().map(|bag| bag.iter().map(|row| row % rows).collect()).collect();
            let list: Vec<&[u32]> = list.iter().map(|bag| &bag[..]).collect();
            let direct = direct.min(rows);
            let owned = |server| (0..rows).filter(|row| owners[*row as usize] == server).collect::<Vec<u32>>();
            let positions = [owned(0), owned(1), owned(2)];
            let shares = bags(direct, &list).split(&positions);
            for (server, share) in shares.iter().enumerate() {
                let own = |bag: &&[u32]| bag.iter().copied().filter(|row| owners[*row as usize] == server).collect();
                let all: Vec<(u32, Vec<u32>)> = list.iter().enumerate().map(|(bag, members)| (direct + bag as u32, own(members))).collect();
                let some: Vec<_> = all.into_iter().filter(|(_, bag)| !bag.is_empty()).collect();
                prop_assert_eq!(restored(share, &positions[server]), some);
                let direct = positions[server].iter().filter(|row| **row < direct).count();
                prop_assert_eq!(share.direct as usize, direct);
            }
        }
    }

    #[test]
    fn the_bytes_of_bags_are_those_of_their_answers_and_members() {
        // Three bags, one of them empty: two rows of 64 bytes and their lengths, five members.
        assert_eq!(bag_bytes(&[0, 1, 1, 5], 64, 1), 2 * 68 + 5 * 4);
        // One member meets one server, four members meet 2·(1 − 1/16).
        assert_eq!(bag_bytes(&[0, 1, 1, 5], 64, 2), (68.0 * (1.0 + 1.875)) as u64 + 5 * 4);
        assert_eq!(bag_bytes(&[0], 64, 1), 0);
    }
}
