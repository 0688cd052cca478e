//! Lookups: rows for ids.

use zagros_protocol::Refusal;
use zagros_protocol::datapath::{Access as WireAccess, LookupRequest, LookupResponse};
use zagros_protocol::packed::value_bytes;
use zagros_table::LookupMode;

use super::bags::pool_rows;
use super::request::{RequestRows, RequestTimes};
use crate::EmbeddingService;

/// Checks the whole request, then reads its rows. In training, it creates missing rows.
pub(crate) fn lookup(
    service: &EmbeddingService,
    request: &LookupRequest,
    times: RequestTimes,
) -> Result<LookupResponse, Refusal> {
    let placement = service.placement()?;
    service.check_whole()?;
    placement.check_request(request.generation)?;
    let access = lookup_mode(request.access)?;
    let value_bytes = value_bytes(request.encoding)?;
    let rows = RequestRows::unpack(&request.segments, &request.ids, &request.bags)?;
    let parts = rows.table_parts();
    let values = service.tables.check_parts(&parts).map_err(|error| service.table_refusal(&error))?;
    let wanted = rows.value_count("the answer", values, value_bytes)?;
    placement.check_rows(&parts)?;

    let entry = service.tables.enter_before(times.deadline).map_err(|error| times.table_refusal(service, &error))?;
    service.check_still(&placement, request.generation)?;
    let mut weights = service.buffers.take_buffer(values);
    let found = service.with_scratch(|scratch| entry.lookup(&parts, access, &mut weights, scratch));
    let report = found.map_err(|error| times.table_refusal(service, &error))?;
    drop(entry);
    service.metrics.lookup.rows.observe((request.ids.len() / 8) as f64);
    service.metrics.looked_up.inc_by(request.ids.len() as u64 / 8);
    service.metrics.created.inc_by(report.created);
    service.metrics.missing.inc_by(report.missing);
    service.metrics.refused.inc_by(report.refused);
    service.metrics.bags_summed.inc_by(rows.bags.bag_count() as u64);
    let pooled = pool_rows(&rows.bags, &rows.segments, weights, wanted, &service.buffers);
    Ok(LookupResponse {
        rows: pooled.into_bytes(request.encoding)?,
        encoding: request.encoding,
        created: u32::try_from(report.created).unwrap_or(u32::MAX),
        late: u32::try_from(report.late).unwrap_or(u32::MAX),
    })
}

fn lookup_mode(access: i32) -> Result<LookupMode, Refusal> {
    match WireAccess::try_from(access) {
        Ok(WireAccess::Train) => Ok(LookupMode::Train),
        Ok(WireAccess::Read) => Ok(LookupMode::Read),
        Ok(WireAccess::Unspecified) | Err(_) => Err(Refusal::invalid(format!("unknown access {access}"))),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use zagros_protocol::datapath::Encoding;
    use zagros_protocol::packed::decode_values;
    use zagros_protocol::{BucketMap, Generation, RefusalKind};
    use zagros_zip::ZipEq;

    use super::*;
    use crate::testing::{BUCKETS, DIM, bags, lookup, lookup_of, lookup_values, placed, read, rows, service};

    fn refused(service: &EmbeddingService, request: &LookupRequest) -> Refusal {
        let held = service.current_load().rows;
        let refusal = lookup(service, request).unwrap_err();
        assert_eq!(service.current_load().rows, held, "a refused lookup created rows");
        refusal
    }

    #[test]
    fn rows_come_in_the_order_of_the_ids() {
        let service = placed(1, 0);
        let answer = lookup(&service, &lookup_of(&[(1, &[5, 6]), (0, &[5])], WireAccess::Train)).unwrap();
        assert_eq!(answer.created, 3);
        let single = |table: u32, id: u64| read(&service, &[(table, &[id])]);
        assert_eq!(read(&service, &[(1, &[5, 6]), (0, &[5])]), [single(1, 5), single(1, 6), single(0, 5)].concat());
        assert_eq!(service.metrics.looked_up.get(), 9);
    }

    #[test]
    fn narrow_encodings_answer_the_rounded_row() {
        let service = placed(1, 0);
        let exact = read(&service, &[(0, &[7])]);
        for encoding in [Encoding::F16, Encoding::Bf16].map(|encoding| encoding as i32) {
            let request = LookupRequest { encoding, ..lookup_of(&[(0, &[7])], WireAccess::Read) };
            let answer = lookup(&service, &request).unwrap();
            assert_eq!((answer.encoding, answer.rows.len()), (encoding, exact.len() * 2));
            let mut near = vec![0.0; exact.len()];
            decode_values(&answer.rows, encoding, &mut near).unwrap();
            assert!(exact.iter().zip_eq(&near).all(|(a, b)| (a - b).abs() <= a.abs() / 128.0), "{exact:?} {near:?}");
        }
    }

    #[test]
    fn before_the_placement_the_answer_is_to_come_back() {
        let refusal = refused(&service(1, 0), &lookup_of(&[(0, &[1])], WireAccess::Train));
        assert!(refusal.kind.is_retryable() && refusal.message.contains("server 0 has no placement"), "{refusal}");
    }

    /// Invariant PL-2.
    #[test]
    fn another_generation_is_reported_to_move_in_both_directions() {
        let service = placed(1, 0);
        let request = lookup_of(&[(0, &[1])], WireAccess::Train);
        for generation in [0, 2] {
            let refusal = refused(&service, &LookupRequest { generation, ..request.clone() });
            assert_eq!(refusal.kind, RefusalKind::Moved, "{refusal}");
        }
        service.set_placement(Arc::new(BucketMap::split_evenly(Generation(2), BUCKETS, 1)));
        assert_eq!(refused(&service, &request).kind, RefusalKind::Moved);
        assert!(lookup(&service, &LookupRequest { generation: 2, ..request }).is_ok());
    }

    #[test]
    fn a_row_of_another_server_is_not_created_here() {
        let ids: Vec<u64> = (0..50).collect();
        assert_eq!(refused(&placed(2, 1), &lookup_of(&[(0, &ids)], WireAccess::Train)).kind, RefusalKind::Moved);
    }

    /// Invariant DP-2.
    #[test]
    fn malformed_requests_and_bags_are_refused_with_names_and_sizes() {
        let service = placed(1, 0);
        let good = lookup_of(&[(0, &[1, 2])], WireAccess::Train);
        let refused = |request: LookupRequest| {
            let refusal = refused(&service, &request);
            assert_eq!(refusal.kind, RefusalKind::Invalid, "{refusal}");
            refusal.message
        };
        let words = |words: [u32; 3]| words.into_iter().flat_map(u32::to_le_bytes).collect::<Vec<u8>>().into();
        let bags_of = |bags: Bytes| LookupRequest { bags, ..good.clone() };
        let short = bags(0, &[&[0, 1]]);
        let many = vec![&[][..]; (256 << 20) / (4 * DIM as usize) + 1];
        let cases = [
            (
                LookupRequest { segments: words([0, 2, 8]), ..good.clone() },
                ["table `user`", "but the request has dim 8"],
            ),
            (LookupRequest { segments: words([2, 2, 4]), ..good.clone() }, ["no table 2;", "this model has 2 tables"]),
            (LookupRequest { ids: good.ids.slice(..8), ..good.clone() }, ["ids: expected 16 bytes", "found 8"]),
            (lookup_of(&[(1, &[1]), (1, &[2])], WireAccess::Train), ["table `item`", "more than once"]),
            (LookupRequest { access: 0, ..good.clone() }, ["unknown access 0", ""]),
            (LookupRequest { encoding: 7, ..good.clone() }, ["unknown value encoding 7", ""]),
            (bags_of(short.slice(4..)), ["bags: expected 4 bytes", "found 28"]),
            (bags_of(short.slice(..short.len() - 4)), ["bags: expected 32 bytes", "found 28"]),
            (bags_of(bags(0, &[&[0, 2]])), ["member of a bag 2 is out of range", "expected less than 2"]),
            (bags_of(bags(1, &[&[0]])), ["segment of bags 1 is out of range", ""]),
            (bags_of(bags(0, &many)), ["the answer would be", "256 MiB"]),
        ];
        for (request, expected) in cases {
            let message = refused(request);
            assert!(expected.iter().all(|part| message.contains(part)), "{message}, expected {expected:?}");
        }
    }

    #[test]
    fn sums_come_in_place_of_rows_and_rows_of_other_tables_as_before() {
        let service = placed(1, 0);
        let rows = read(&service, &[(0, &[5, 6, 7]), (1, &[5])]);
        let row = |row: usize| &rows[row * DIM as usize..][..DIM as usize];
        for access in [WireAccess::Read, WireAccess::Train] {
            let request = lookup_of(&[(0, &[5, 6, 7]), (1, &[5])], access);
            let request = LookupRequest { bags: bags(0, &[&[0, 2, 0], &[], &[1]]), ..request };
            let sum = |column: usize| row(0)[column] + row(2)[column] + row(0)[column];
            let sums = (0..DIM as usize).map(sum).collect::<Vec<_>>();
            let expected = [&sums[..], &[0.0; DIM as usize], row(1), row(3)].concat();
            assert_eq!(lookup_values(&service, &request), expected);
        }
        // A member is a row like any other.
        assert_eq!((service.current_load().rows, service.metrics.bags_summed.get()), (4, 6));
    }

    #[test]
    fn no_rows_is_a_request_like_any_other() {
        let (segments, ids) = rows(&[]);
        let request = LookupRequest { segments, ids, ..lookup_of(&[], WireAccess::Train) };
        assert!(lookup(&placed(1, 0), &request).unwrap().rows.is_empty());
    }
}
