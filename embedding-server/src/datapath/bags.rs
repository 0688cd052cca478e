//! Sums of rows instead of rows, and gradients of sums as gradients of rows (ADR 16).
//!
//! A table knows no bags. A lookup reads all rows of a segment once and sums them for the answer. A push spreads the
//! gradients over all rows of the segment, one gradient per row.

use std::ops::Range;
use std::sync::Arc;

use zagros_protocol::Segments;
use zagros_protocol::packed::{PayloadValues, RequestBags, SegmentBags, ValueBuffer, ValueBuffers};
use zagros_table::run_wide;
use zagros_zip::ZipEq;

/// One segment of a request, as ranges of values.
struct SegmentRun<'a> {
    bags: Option<SegmentBags<'a>>,
    dim: usize,
    /// Its rows, in the values of all rows.
    rows: Range<usize>,
    /// Its rows and sums of the answer, in the values of the answer.
    wanted: Range<usize>,
}

/// Computes the answer from `rows`, segment after segment: `[rows, dim]` becomes `[wanted, dim]`. The members of a bag
/// are added in the order of the bag, so a sum is the same in every run.
pub(crate) fn pool_rows(
    bags: &RequestBags<'_>,
    segments: &Segments,
    rows: ValueBuffer,
    wanted: usize,
    buffers: &Arc<ValueBuffers>,
) -> ValueBuffer {
    if bags.is_empty() {
        return rows;
    }
    let mut out = buffers.take_buffer(wanted);
    out.fill(0.0);
    run_wide(
        #[inline(always)]
        || {
            for run in segment_runs(bags, segments) {
                pool_segment(&run, &rows[run.rows.clone()], &mut out[run.wanted.clone()]);
            }
        },
    );
    out
}

/// The transpose of [`pool_rows`]: turns the gradients of an answer into `rows` values of gradients, one gradient per row. A
/// row gets the gradients of its bags in the order of the bags, once for each time it is a member.
pub(crate) fn spread_gradients<'a>(
    bags: &RequestBags<'_>,
    segments: &Segments,
    gradients: PayloadValues<'a>,
    rows: usize,
    buffers: &Arc<ValueBuffers>,
) -> PayloadValues<'a> {
    if bags.is_empty() {
        return gradients;
    }
    let mut out = buffers.take_buffer(rows);
    out.fill(0.0);
    run_wide(
        #[inline(always)]
        || {
            for run in segment_runs(bags, segments) {
                spread_segment(&run, &gradients[run.wanted.clone()], &mut out[run.rows.clone()]);
            }
        },
    );
    PayloadValues::Decoded(out)
}

fn segment_runs<'a>(bags: &'a RequestBags<'_>, segments: &Segments) -> impl Iterator<Item = SegmentRun<'a>> {
    let (mut row, mut wanted) = (0, 0);
    segments.iter().enumerate().map(move |(index, segment)| {
        let (bags, dim, count) = (bags.segment_bags(index), segment.dim as usize, segment.rows as usize);
        let rows = row..row + count * dim;
        let wanted_values = wanted..wanted + bags.map_or(count, |bags| bags.wanted_rows()) * dim;
        (row, wanted) = (rows.end, wanted_values.end);
        SegmentRun { bags, dim, rows, wanted: wanted_values }
    })
}

#[inline(always)]
fn pool_segment(run: &SegmentRun<'_>, rows: &[f32], out: &mut [f32]) {
    let Some(bags) = &run.bags else { return out.copy_from_slice(rows) };
    let (direct, sums) = out.split_at_mut(bags.direct as usize * run.dim);
    direct.copy_from_slice(&rows[..direct.len()]);
    for (sum, members) in sums.chunks_exact_mut(run.dim).zip_eq(bags.iter()) {
        for member in members {
            add_row(sum, &rows[*member as usize * run.dim..][..run.dim]);
        }
    }
}

#[inline(always)]
fn spread_segment(run: &SegmentRun<'_>, gradients: &[f32], out: &mut [f32]) {
    let Some(bags) = &run.bags else { return out.copy_from_slice(gradients) };
    let (direct, sums) = gradients.split_at(bags.direct as usize * run.dim);
    out[..direct.len()].copy_from_slice(direct);
    for (gradient, members) in sums.chunks_exact(run.dim).zip_eq(bags.iter()) {
        for member in members {
            add_row(&mut out[*member as usize * run.dim..][..run.dim], gradient);
        }
    }
}

#[inline(always)]
fn add_row(into: &mut [f32], values: &[f32]) {
    for (sum, value) in into.iter_mut().zip_eq(values) {
        *sum += value;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zagros_protocol::packed::pack_bags;
    use zagros_protocol::{Segment, TableId};

    use super::*;

    /// One segment: its number of rows, how many of them are returned as rows, and its bags.
    type Case = (u32, u32, Vec<Vec<u32>>);

    fn case() -> impl Strategy<Value = Option<Case>> {
        let case = (1_u32..7).prop_flat_map(|rows| {
            let bags = prop::collection::vec(prop::collection::vec(0..rows, 0..6), 0..5);
            (Just(rows), 0..=rows, bags)
        });
        prop::option::of(case)
    }

    const PLAIN_ROWS: u32 = 3;

    /// Buffers with old values of earlier requests.
    fn buffers() -> Arc<ValueBuffers> {
        let buffers = Arc::new(ValueBuffers::default());
        buffers.take_buffer(100).fill(f32::NAN);
        buffers
    }

    fn lent(values: &[f32]) -> ValueBuffer {
        let mut buffer = buffers().take_buffer(values.len());
        buffer.copy_from_slice(values);
        buffer
    }

    fn segments(cases: &[Option<Case>]) -> Segments {
        let rows = |case: &Option<Case>| case.as_ref().map_or(PLAIN_ROWS, |case| case.0);
        let segment = |(table, case)| Segment { table: TableId(table as u32), rows: rows(case), dim: table as u32 + 1 };
        Segments::new(cases.iter().enumerate().map(segment).collect())
    }

    fn packed(cases: &[Option<Case>]) -> Vec<u8> {
        let lengths = |bags: &[Vec<u32>]| bags.iter().map(|bag| bag.len() as u32).collect::<Vec<_>>();
        let flat = |(_, direct, bags): &Case| (*direct, lengths(bags), bags.concat());
        let indexed = cases.iter().enumerate();
        let flat: Vec<_> = indexed.filter_map(|(at, case)| Some((at as u32, case.as_ref().map(flat)?))).collect();
        let bags = flat.iter().map(|(segment, (direct, lengths, members))| {
            let (segment, direct) = (*segment, *direct);
            SegmentBags { segment, direct, lengths, members }
        });
        pack_bags(&bags.collect::<Vec<_>>()).to_vec()
    }

    /// For each row of the answer, its dim and the rows that it sums.
    fn wanted(cases: &[Option<Case>]) -> Vec<(usize, Vec<u32>)> {
        let single = |segment: usize, rows: u32| (0..rows).map(move |row| (segment, vec![row]));
        let wanted_rows = |(segment, case): (usize, &Option<Case>)| match case {
            None => single(segment, PLAIN_ROWS).collect::<Vec<_>>(),
            Some((_, direct, bags)) => {
                single(segment, *direct).chain(bags.iter().map(|bag| (segment, bag.clone()))).collect()
            }
        };
        cases.iter().enumerate().flat_map(wanted_rows).collect()
    }

    proptest! {
        /// Small integers have exact sums in any order.
        #[test]
        fn pooling_and_spreading_equal_their_definitions(cases in prop::collection::vec(case(), 1..5)) {
            let (segments, packed) = (segments(&cases), packed(&cases));
            let bags = RequestBags::unpack(&packed, &segments).unwrap();
            let values: usize = segments.iter().map(|segment| (segment.rows * segment.dim) as usize).sum();
            let wanted_values = bags.wanted_values(&segments).unwrap();
            let starts: Vec<usize> = segments.iter().scan(0, |start, segment| {
                Some(std::mem::replace(start, *start + (segment.rows * segment.dim) as usize))
            }).collect();
            let rows: Vec<f32> = (0..values).map(|value| (value * 7 % 23) as f32).collect();
            let gradients: Vec<f32> = (0..wanted_values).map(|value| (value * 5 % 19) as f32).collect();

            let (mut sums, mut spread_out, mut next) = (Vec::new(), vec![0.0; values], gradients.iter());
            for (segment, members) in wanted(&cases) {
                let dim = segment + 1;
                let index = |member: u32, column: usize| starts[segment] + member as usize * dim + column;
                for column in 0..dim {
                    sums.push(members.iter().map(|member| rows[index(*member, column)]).sum::<f32>());
                    let gradient = next.next().unwrap();
                    members.iter().for_each(|member| spread_out[index(*member, column)] += gradient);
                }
            }
            prop_assert_eq!(&pool_rows(&bags, &segments, lent(&rows), wanted_values, &buffers())[..], &sums[..]);
            let gradients = PayloadValues::Borrowed(&gradients);
            prop_assert_eq!(&spread_gradients(&bags, &segments, gradients, values, &buffers())[..], &spread_out[..]);
        }
    }

    #[test]
    fn without_bags_nothing_is_copied() {
        let segments = segments(&[None]);
        let bags = RequestBags::unpack(&[], &segments).unwrap();
        let gradients = [1.0, 2.0, 3.0];
        let spread = spread_gradients(&bags, &segments, PayloadValues::Borrowed(&gradients), 3, &buffers());
        assert_eq!(spread.as_ptr(), gradients.as_ptr());
        let rows = lent(&[1.0, 2.0, 3.0]);
        let pointer = rows.as_ptr();
        let pooled = pool_rows(&bags, &segments, rows, 3, &buffers());
        assert_eq!(pooled.as_ptr(), pointer);
    }
}
