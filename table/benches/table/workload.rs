//! The rows of each request: distinct ids in the order of their stripes, or in any order, as the client sends them.

use std::collections::HashSet;

use zagros_table::{DEFAULT_STRIPES, stripe_of_id};

/// Rows of a request: about as many as the distinct ids of a batch of 4096 Criteo samples.
pub(crate) const BATCH: usize = 24_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ids {
    Uniform,
    /// The frequency of the k-th most frequent id is proportional to 1 / k.
    Zipf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Any,
    Stripes,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestShape {
    pub(crate) requests: usize,
    pub(crate) batch: usize,
    pub(crate) order: Order,
}

impl RequestShape {
    /// So many requests as the client sends them.
    pub(crate) fn new(requests: usize) -> Self {
        Self { requests, batch: BATCH, order: Order::Any }
    }
}

/// Requests for rows numbered from 0. A request names no row twice.
pub(crate) struct Requests {
    /// Row numbers, request after request.
    pub(crate) rows: Vec<Vec<usize>>,
}

impl Requests {
    pub(crate) fn new(ids: Ids, rows: usize, shape: RequestShape) -> Self {
        let batch = shape.batch.min(rows / 4);
        let mut random = 0;
        let mut seen = HashSet::new();
        let mut request = |_| {
            seen.clear();
            let mut request = Vec::with_capacity(batch);
            while request.len() < batch {
                random += 1;
                let row = draw(ids, rows, mix(random));
                if seen.insert(row) {
                    request.push(row);
                }
            }
            if shape.order == Order::Stripes {
                request.sort_by_key(|row| stripe_of_id(id_of(*row), DEFAULT_STRIPES));
            }
            request
        };
        Self { rows: (0..shape.requests).map(&mut request).collect() }
    }

    /// The ids of the rows.
    pub(crate) fn ids(&self) -> Vec<Vec<u64>> {
        self.rows.iter().map(|rows| rows.iter().map(|row| id_of(*row)).collect()).collect()
    }
}

/// The id of a row. Ids are spread over all 64 bits.
pub(crate) fn id_of(row: usize) -> u64 {
    mix(row as u64 ^ 0x5851_f42d_4c95_7f2d)
}

/// Draws a row. Frequent rows are spread over memory, like rows in the order of their creation.
fn draw(ids: Ids, rows: usize, random: u64) -> usize {
    let unit = (random >> 11) as f64 / (1_u64 << 53) as f64;
    let rank = match ids {
        Ids::Uniform => unit * rows as f64,
        // The sum of 1 / k up to a rank grows like the logarithm of the rank.
        Ids::Zipf => ((rows as f64 + 1.0).ln() * unit).exp() - 1.0,
    };
    // A prime larger than any number of rows makes the multiplication a permutation.
    const PRIME: u128 = 4_294_967_291;
    (rank as u128 * PRIME % rows as u128) as usize
}

/// The finaliser of SplitMix64.
fn mix(mut value: u64) -> u64 {
    value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}
