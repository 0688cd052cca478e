//! Pushes: gradients for ids, each applied at once and at most once.

use zagros_protocol::Refusal;
use zagros_protocol::datapath::{PushRequest, PushResponse, TileUpdate as TileUpdateCode};
use zagros_protocol::packed::{PayloadValues, value_bytes};
use zagros_table::{PushOrigin, PushReport, PushStep, RequestGuard, TableError, TileUpdate};

use super::bags::spread_gradients;
use super::request::{RequestRows, RequestTimes};
use super::sequence_window::{PushClaim, PushTicket};
use super::window_groups::RequestGroups;
use crate::EmbeddingService;
use crate::durability::{PushedRows, RemainingRows};

/// Checks the whole request, then applies it unless it was applied before (invariant DP-3).
pub(crate) fn push(
    service: &EmbeddingService,
    request: &PushRequest,
    times: RequestTimes,
) -> Result<PushResponse, Refusal> {
    let placement = service.placement()?;
    service.check_whole()?;
    placement.check_request(request.generation)?;
    let step = PushStep { number: request.step, share: step_share(request)?, tiles: tile_update(request)? };
    let rows = RequestRows::unpack(&request.segments, &request.ids, &request.bags)?;
    let parts = rows.table_parts();
    let count = service.tables.check_parts(&parts).map_err(|error| service.table_refusal(&error))?;
    placement.check_rows(&parts)?;
    let is_commit = matches!(step.tiles, TileUpdate::Commit { .. });
    let wanted = rows.value_count("the gradients", count, value_bytes(request.encoding)?)?;
    let wanted = if is_commit { 0 } else { wanted };
    let gradients = PayloadValues::read("gradients", &request.gradients, request.encoding, wanted, &service.buffers)?;

    // Nothing is applied that the log has no room for.
    let _room = service.log.as_ref().map(|log| log.reserve_room(&parts)).transpose()?;
    let push = PushOrigin { writer: request.writer, incarnation: request.incarnation, seq: request.seq };
    service.writers.admit_push(push, request.step)?;
    // One guard for the tables and for the record of the push: a snapshot contains both or neither.
    let entry = service.tables.enter_before(times.deadline).map_err(|error| times.table_refusal(service, &error))?;
    service.check_still(&placement, request.generation)?;
    let groups = service.windows.groups.of_request(&parts, placement.bucket_count());
    let ticket = match service.windows.claim_push(push, groups.groups())? {
        PushClaim::First(ticket) => ticket,
        PushClaim::Duplicate => {
            service.windows.steps.note_push(request);
            drop(entry);
            // It is in the log, and perhaps not yet durable.
            service.log.as_ref().map_or(Ok(()), |log| log.flush())?;
            service.metrics.duplicates.inc();
            return Ok(PushResponse { duplicate: true });
        }
    };
    service.tables.advance_clock(request.step, 0);
    let gradients = match gradients {
        // The server reads no gradients of a commit: a commit applies those that are in the tiles.
        _ if is_commit => PayloadValues::Decoded(service.buffers.take_buffer(count)),
        gradients => spread_gradients(&rows.bags, &rows.segments, gradients, count, &service.buffers),
    };
    // A refusal drops the ticket. The push then counts as never received.
    let pushed = PushedRows { parts: &parts, gradients: &gradients, step };
    let pushed = apply_to_groups(service, &entry, push, pushed, (&ticket, &groups));
    let report = pushed.map_err(|error| times.table_refusal(service, &error))?;
    if let Some(log) = &service.log {
        log.commit_push(&push, step.number, &service.tables, ticket.groups());
    }
    // From here on a retry is a duplicate, whatever becomes of the answer.
    ticket.mark_applied();
    service.windows.steps.note_push(request);
    drop(entry);
    service.log.as_ref().map_or(Ok(()), |log| log.flush())?;
    service.metrics.push.rows.observe((request.ids.len() / 8) as f64);
    service.metrics.staleness.observe(f64::from(request.staleness));
    service.metrics.updated.inc_by(report.updated);
    service.metrics.created.inc_by(report.created);
    service.metrics.repeated.inc_by(report.repeated);
    service.metrics.skipped.inc_by(report.skipped);
    service.metrics.refused.inc_by(report.refused);
    service.metrics.bags_spread.inc_by(rows.bags.bag_count() as u64);
    Ok(PushResponse { duplicate: false })
}

/// Applies a push to the rows of those window groups that do not have it.
fn apply_to_groups(
    service: &EmbeddingService,
    entry: &RequestGuard<'_>,
    push: PushOrigin,
    rows: PushedRows<'_>,
    (ticket, groups): (&PushTicket<'_>, &RequestGroups),
) -> Result<PushReport, TableError> {
    if !groups.has_others(ticket.groups()) {
        return apply_rows(service, entry, push, rows);
    }
    let has_push = |table, id| !ticket.groups().contains(&groups.of_row(table, id));
    let rest = RemainingRows::new(has_push, rows.parts, rows.gradients);
    apply_rows(service, entry, push, PushedRows { parts: &rest.request_parts(), gradients: &rest.gradients, ..rows })
}

fn apply_rows(
    service: &EmbeddingService,
    entry: &RequestGuard<'_>,
    push: PushOrigin,
    rows: PushedRows<'_>,
) -> Result<PushReport, TableError> {
    service.with_scratch(|scratch| match &service.log {
        None => entry.push(rows.parts, rows.gradients, rows.step, scratch),
        Some(log) => log.apply_push(entry, push, rows, scratch),
    })
}

fn step_share(request: &PushRequest) -> Result<f32, Refusal> {
    let share = request.share.unwrap_or(1.0);
    if (0.0..=1.0).contains(&share) {
        return Ok(share);
    }
    Err(Refusal::invalid(format!("the push has a share of {share} of its step's samples; expected 0 to 1")))
}

fn tile_update(request: &PushRequest) -> Result<TileUpdate, Refusal> {
    let factor = request.factor;
    match TileUpdateCode::try_from(request.tiles) {
        Ok(TileUpdateCode::AtOnce) => Ok(TileUpdate::AtOnce),
        Ok(TileUpdateCode::Stage) => Ok(TileUpdate::Stage),
        Ok(TileUpdateCode::Commit) if factor > 0.0 && factor <= 1.0 => Ok(TileUpdate::Commit { factor }),
        Ok(TileUpdateCode::Commit) => {
            Err(Refusal::invalid(format!("a commit has a factor of {factor}; expected more than 0 and at most 1")))
        }
        Err(_) => {
            let code = request.tiles;
            Err(Refusal::invalid(format!("the push does {code} with tiles; expected 0, 1 or 2 (embedding.proto)")))
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use zagros_protocol::RefusalKind;
    use zagros_protocol::datapath::Encoding;
    use zagros_protocol::packed::encode_values;

    use super::*;
    use crate::testing::{DIM, bags, job, placed, placed_with, push, push_of, read};

    /// `item` uses SGD with learning rate 1: a row is its first value minus the sum of its gradients.
    const ITEM: u32 = 1;

    fn pushed(service: &EmbeddingService, request: &PushRequest) -> bool {
        !push(service, request).unwrap().duplicate
    }

    fn less(values: &[f32], amount: f32) -> Vec<f32> {
        values.iter().map(|value| value - amount).collect()
    }

    /// Invariant DP-3.
    #[test]
    fn a_retry_is_answered_and_not_applied() {
        let service = placed(1, 0);
        let first = read(&service, &[(ITEM, &[5, 6])]);
        let request = push_of(&[(ITEM, &[5, 6])], 1, 0.5);
        assert!(pushed(&service, &request) && !pushed(&service, &request));
        assert_eq!(read(&service, &[(ITEM, &[5, 6])]), less(&first, 0.5));
        assert!(pushed(&service, &PushRequest { seq: 2, ..request }));
        let counted = |counter: &prometheus::IntCounter| counter.get();
        let metrics = &service.metrics;
        assert_eq!([&metrics.updated, &metrics.created, &metrics.duplicates].map(counted), [4, 2, 1]);
    }

    /// Invariant DP-2.
    #[test]
    fn a_refused_push_changes_nothing_and_may_be_sent_again_whole() {
        let service = placed(1, 0);
        let first = read(&service, &[(ITEM, &[5, 6])]);
        let good = push_of(&[(ITEM, &[5, 6])], 1, 0.25);
        let mut values = vec![0.25; 2 * DIM as usize];
        values[DIM as usize] = f32::NAN;
        let nan = encode_values(&values, Encoding::F32 as i32).unwrap().into();
        let odd_bags = |gradients| push_of_bags(gradients, 1);
        let cases = [
            (PushRequest { gradients: nan, ..good.clone() }, "table `item`: table 1: the gradient of id 6 is NaN"),
            (odd_bags([f32::NAN, 1.0]), "table `item`: table 1: the gradient of id 5 is NaN"),
            (
                PushRequest { gradients: good.gradients.slice(4..), ..good.clone() },
                "gradients: expected 32 bytes, found 28",
            ),
            (PushRequest { encoding: Encoding::Bf16 as i32, ..good.clone() }, "gradients: expected 16 bytes, found 32"),
            (
                PushRequest { bags: bags(0, &[&[0], &[1], &[]]), ..odd_bags([0.5, 0.5]) },
                "gradients: expected 48 bytes, found 32",
            ),
        ];
        for (request, expected) in cases {
            let refusal = push(&service, &request).unwrap_err();
            assert!(refusal.kind == RefusalKind::Invalid && refusal.message.contains(expected), "{refusal}");
        }
        assert_eq!(read(&service, &[(ITEM, &[5, 6])]), first);
        assert!(pushed(&service, &good));
        assert_eq!(read(&service, &[(ITEM, &[5, 6])]), less(&first, 0.25));
    }

    #[test]
    fn narrow_gradients_are_widened() {
        let service = placed(1, 0);
        for (seq, encoding) in [(1, Encoding::F16), (2, Encoding::Bf16)] {
            let first = read(&service, &[(ITEM, &[3])]);
            let gradients = encode_values(&[0.5; DIM as usize], encoding as i32).unwrap().into();
            let request = PushRequest { gradients, encoding: encoding as i32, ..push_of(&[(ITEM, &[3])], seq, 0.0) };
            assert!(pushed(&service, &request));
            assert_eq!(read(&service, &[(ITEM, &[3])]), less(&first, 0.5));
        }
    }

    #[test]
    fn the_wrong_generation_server_or_incarnation_applies_nothing() {
        let service = placed(2, 0);
        let ids: Vec<u64> = (0..50).collect();
        let request = push_of(&[(ITEM, &ids)], 1, 1.0);
        assert_eq!(push(&service, &request).unwrap_err().kind, RefusalKind::Moved);
        let late = PushRequest { generation: 2, ..push_of(&[], 1, 1.0) };
        assert_eq!(push(&service, &late).unwrap_err().kind, RefusalKind::Moved);
        assert!(pushed(&service, &PushRequest { incarnation: 3, ..push_of(&[], 1, 1.0) }));
        assert_eq!(push(&service, &push_of(&[], 2, 1.0)).unwrap_err().kind, RefusalKind::Fenced);
        assert_eq!(service.current_load().rows, 0);
    }

    /// Invariant DP-6. A worker that joined late counts its pushes from 0, but its steps from the step of the run.
    #[test]
    fn the_learning_rate_is_that_of_the_step_and_not_of_the_number_of_the_push() {
        let mut job = job(1);
        job.tables[ITEM as usize].schedule =
            zagros_job::RateSchedule::Linear { warmup: 0.into(), decay: 100.into(), floor: 0.0 };
        let service = placed_with(&job);
        let first = read(&service, &[(ITEM, &[5])]);
        for (seq, step, rate) in [(9, 0, 1.0), (0, 100, 0.0), (1, 50, 0.5)] {
            let old_rows = read(&service, &[(ITEM, &[5])]);
            assert!(pushed(&service, &PushRequest { step, ..push_of(&[(ITEM, &[5])], seq, 0.5) }));
            assert_eq!(read(&service, &[(ITEM, &[5])]), less(&old_rows, 0.5 * rate), "push {seq} at step {step}");
        }
        assert_ne!(read(&service, &[(ITEM, &[5])]), first);
    }

    #[test]
    fn a_table_that_stages_nothing_refuses_to_and_odd_factors_are_refused() {
        let service = placed(1, 0);
        let first = read(&service, &[(ITEM, &[5])]);
        let stage = PushRequest { tiles: 1, ..push_of(&[(ITEM, &[5])], 1, 0.5) };
        let refusal = push(&service, &stage).unwrap_err();
        assert!(refusal.message.contains("neither stages nor commits"), "{refusal}");
        for (tiles, factor, expected) in
            [(2, 0.0, "a factor of 0"), (2, f32::NAN, "NaN"), (3, 0.0, "does 3 with tiles")]
        {
            let gradients = Bytes::new();
            let refusal = push(&service, &PushRequest { tiles, factor, gradients, ..stage.clone() }).unwrap_err();
            assert!(refusal.kind == RefusalKind::Invalid && refusal.message.contains(expected), "{refusal}");
        }
        let with_gradients = push(&service, &PushRequest { tiles: 2, factor: 1.0, ..stage }).unwrap_err();
        assert!(with_gradients.message.contains("gradients: expected 0 bytes"), "{with_gradients}");
        assert_eq!(read(&service, &[(ITEM, &[5])]), first);
    }

    #[test]
    fn gradients_of_an_id_that_is_named_twice_are_summed() {
        let service = placed(1, 0);
        let first = read(&service, &[(ITEM, &[5])]);
        assert!(pushed(&service, &push_of(&[(ITEM, &[5, 5])], 1, 0.25)));
        assert_eq!(read(&service, &[(ITEM, &[5])]), less(&first, 0.5));
        assert_eq!(service.metrics.repeated.get(), 1);
    }

    #[test]
    fn a_row_decays_once_a_step_whatever_shares_its_pushes_have() {
        // Each whole step halves the rows. The gradient of the loss is 0.
        let mut job = job(1);
        job.tables[1].optimizer = zagros_job::Optimizer::Sgd { lr: 1.0, momentum: 0.0, l2: 0.5 };
        let request = |share, seq| PushRequest { share, step: 1, ..push_of(&[(ITEM, &[5])], seq, 0.0) };
        for (share, later) in [(None, None), (Some(1.0), None), (Some(0.25), Some(0.75)), (Some(0.0), Some(1.0 / 3.0))]
        {
            let service = placed_with(&job);
            let first = read(&service, &[(ITEM, &[5])]);
            assert!(pushed(&service, &request(share, 1)));
            let halved: Vec<f32> = first.iter().map(|value| value * 0.5).collect();
            assert_eq!(read(&service, &[(ITEM, &[5])]), halved, "{share:?}");
            // The rest of the step.
            if later.is_some() {
                assert!(pushed(&service, &request(later, 2)));
                assert_eq!(read(&service, &[(ITEM, &[5])]), halved, "{later:?} after {share:?}");
            }
        }
        for share in [f32::NAN, -0.5, 1.5, f32::INFINITY] {
            let refusal = push(&placed_with(&job), &request(Some(share), 1)).unwrap_err();
            assert_eq!(refusal.kind, RefusalKind::Invalid);
            assert!(refusal.message.contains("of its step's samples; expected 0 to 1"), "{refusal}");
        }
    }

    /// A push of two bags over ids 5 and 6 of `item`, with one gradient each.
    fn push_of_bags(gradients: [f32; 2], seq: u64) -> PushRequest {
        let values = gradients.iter().flat_map(|gradient| [*gradient; DIM as usize]).collect::<Vec<_>>();
        let gradients = encode_values(&values, Encoding::F32 as i32).unwrap().into();
        PushRequest { gradients, bags: bags(0, &[&[0, 1], &[1, 1]]), ..push_of(&[(ITEM, &[5, 6])], seq, 0.0) }
    }

    /// Invariant DP-3.
    #[test]
    fn the_gradient_of_a_bag_goes_to_each_of_its_members_once() {
        let service = placed(1, 0);
        let first = read(&service, &[(ITEM, &[5, 6])]);
        let request = push_of_bags([0.25, 1.0], 1);
        assert!(pushed(&service, &request) && !pushed(&service, &request));
        let (five, six) = first.split_at(DIM as usize);
        assert_eq!(read(&service, &[(ITEM, &[5, 6])]), [less(five, 0.25), less(six, 2.25)].concat());
        assert_eq!((service.metrics.updated.get(), service.metrics.bags_spread.get()), (2, 2));
    }
}
