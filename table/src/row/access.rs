//! Access metadata of a row: one word with the time of the last use and, for LFU, the frequency of use.
//!
//! Times are counted in ticks, which are steps or seconds, and wrap around. An age above half the range reads as 0.
//!
//! - LRU: the tick of the last use, 32 bits.
//! - LFU: `[time: 20 bits | frequency: 12 bits]`. The time counts units of several ticks. The frequency is the base-2
//!   logarithm of the number of uses at that time, with 8 bits of fraction. After a half-life, a use counts half. A use
//!   at age d changes the frequency f by adding log₂(1 + 2^(f − d)). The order of rows is exact up to about 300 uses
//!   per half-life. Beyond that the frequency stays constant.

use std::sync::Arc;

use crate::{EvictionOrder, EvictionPolicy, StepClock, TableTime, Ttl};

/// Bits of a frequency, and bits of its fraction.
const FREQUENCY_BITS: u32 = 12;
const FRACTION_BITS: u32 = 8;
/// Bits of the time next to a frequency.
const TIME_BITS: u32 = u32::BITS - FREQUENCY_BITS;
/// Units of time in a half-life, and the fewest and the most units in a time to live.
const UNITS_PER_HALF_LIFE: u32 = 32;
const UNITS_PER_TTL: u32 = 16;
const MOST_UNITS_PER_TTL: u32 = 1 << (TIME_BITS - 3);
/// The shortest unit without a time to live. An age above half the range reads as 0, which takes 8 million ticks or more.
const SHORTEST_UNIT: u32 = 16;
/// If two frequencies differ by this much or more, the smaller one adds nothing.
const LONGEST_SUM: usize = 10 << FRACTION_BITS;
/// The rank of a row past its time to live.
const EXPIRED: u32 = 0;

/// How a table writes and reads access metadata.
#[derive(Clone, Debug)]
pub(crate) struct AccessCodec {
    order: AccessKind,
    ttl: Option<Ttl>,
}

#[derive(Clone, Debug)]
enum AccessKind {
    Lru,
    /// `sums[d]` = log₂(1 + 2^−d), all in units of the fraction.
    Lfu {
        half_life: u32,
        unit: u32,
        sums: Arc<[u16]>,
    },
}

impl AccessCodec {
    pub(crate) fn new(eviction: &EvictionPolicy) -> Self {
        let order = match eviction.order {
            EvictionOrder::Lru => AccessKind::Lru,
            EvictionOrder::Lfu { half_life } => {
                // A row past its time to live must be seen to be old until a sweep has removed it.
                let [shortest, longest] = match eviction.ttl {
                    Some(Ttl::Steps(ttl) | Ttl::Seconds(ttl)) => [ttl / MOST_UNITS_PER_TTL, ttl / UNITS_PER_TTL],
                    None => [SHORTEST_UNIT, u32::MAX],
                };
                let unit = (half_life / UNITS_PER_HALF_LIFE).clamp(shortest, longest).max(1);
                AccessKind::Lfu { half_life, unit, sums: (0..LONGEST_SUM).map(sum_of).collect() }
            }
        };
        Self { order, ttl: eviction.ttl }
    }

    /// How many ticks a row lives after its last use.
    pub(crate) fn ttl(&self) -> Option<u64> {
        self.ttl.map(|ttl| match ttl {
            Ttl::Steps(ttl) | Ttl::Seconds(ttl) => u64::from(ttl),
        })
    }

    pub(crate) fn tick(&self, moment: TableTime) -> u64 {
        if matches!(self.ttl, Some(Ttl::Seconds(_))) { moment.seconds } else { moment.steps }
    }

    /// Describes the format, for a saved model.
    pub(crate) fn describe(&self) -> String {
        let ticks = if matches!(self.ttl, Some(Ttl::Seconds(_))) { "seconds" } else { "steps" };
        match &self.order {
            AccessKind::Lru => format!("last use in {ticks}"),
            AccessKind::Lfu { half_life, unit, .. } => {
                format!("last use in units of {unit} {ticks}, uses of half-life {half_life}")
            }
        }
    }

    pub(crate) fn first_use(&self, tick: u64) -> u32 {
        let AccessKind::Lfu { unit, .. } = &self.order else { return tick as u32 };
        lfu(tick / u64::from(*unit), 0)
    }

    #[inline]
    pub(crate) fn after_use(&self, access: u32, tick: u64) -> u32 {
        let AccessKind::Lfu { unit, sums, .. } = &self.order else { return tick as u32 };
        let frequency = self.frequency(access, tick);
        let sum = |difference: i64| sums.get(difference.unsigned_abs() as usize).map_or(0, |sum| i64::from(*sum));
        lfu(tick / u64::from(*unit), frequency.max(0) + sum(frequency))
    }

    /// Access metadata of the same age in this process. It was written at the time `then` of another process, and it is
    /// read at the time `now` of this one. Seconds are those of one process. Steps are equal in both, unless they restart:
    /// then a row with a time to live in steps is no older than the run.
    pub(crate) fn rebase(&self, access: u32, then: TableTime, now: TableTime, steps: StepClock) -> u32 {
        let longest = match (self.ttl, steps) {
            (Some(Ttl::Seconds(_)), _) | (None, StepClock::Restarts) => u64::MAX,
            (Some(Ttl::Steps(_)), StepClock::Restarts) => now.steps,
            (Some(Ttl::Steps(_)) | None, StepClock::GoesOn) => return access,
        };
        let (then, now) = (self.tick(then), self.tick(now));
        match &self.order {
            AccessKind::Lru => (now as u32).wrapping_sub(lru_age(access, then).min(longest) as u32),
            AccessKind::Lfu { unit, .. } => {
                let unit = u64::from(*unit);
                // The unit of the last use may have lasted until `then`. No row seems older than it is.
                let age = (lfu_age(access, then, unit as u32) * unit + then % unit).saturating_sub(unit - 1);
                let time = (now as i64).wrapping_sub(age.min(longest) as i64).div_euclid(unit as i64);
                // Uses that the limit makes younger have decayed before.
                let decayed = if age > longest { self.frequency(access, then) } else { frequency_part(access) };
                lfu(time as u64, decayed)
            }
        }
    }

    /// Whether a row is past its time to live. With LFU the answer may be up to two units late, but never early.
    #[inline]
    pub(crate) fn is_expired(&self, access: u32, tick: u64) -> bool {
        let Some(Ttl::Steps(ttl) | Ttl::Seconds(ttl)) = self.ttl else { return false };
        let age = match &self.order {
            AccessKind::Lru => lru_age(access, tick),
            AccessKind::Lfu { unit, .. } => lfu_age(access, tick, *unit).saturating_sub(1) * u64::from(*unit),
        };
        age >= u64::from(ttl)
    }

    /// Rows of lower rank are evicted first.
    #[inline]
    pub(crate) fn rank(&self, access: u32, tick: u64) -> u32 {
        if self.is_expired(access, tick) {
            return EXPIRED;
        }
        let rank = match &self.order {
            AccessKind::Lru => i64::from(u32::MAX) - lru_age(access, tick) as i64,
            AccessKind::Lfu { .. } => i64::from(u32::MAX >> 1) + self.frequency(access, tick),
        };
        rank.clamp(i64::from(EXPIRED) + 1, i64::from(u32::MAX)) as u32
    }

    /// The logarithm of the number of uses, each weighted by its age at `tick`.
    #[inline]
    fn frequency(&self, access: u32, tick: u64) -> i64 {
        match &self.order {
            AccessKind::Lru => 0,
            AccessKind::Lfu { half_life, unit, .. } => {
                let age = lfu_age(access, tick, *unit) * u64::from(*unit);
                frequency_part(access) - ((age << FRACTION_BITS) / u64::from(*half_life)) as i64
            }
        }
    }
}

fn sum_of(difference: usize) -> u16 {
    let one = f64::from(1 << FRACTION_BITS);
    (libm::log2(1.0 + libm::exp2(-(difference as f64) / one)) * one + 0.5) as u16
}

fn lfu(time: u64, frequency: i64) -> u32 {
    let most = (1 << FREQUENCY_BITS) - 1;
    (time as u32) << FREQUENCY_BITS | frequency.clamp(0, most) as u32
}

/// The frequency at the time of the last use.
fn frequency_part(access: u32) -> i64 {
    i64::from(access & ((1 << FREQUENCY_BITS) - 1))
}

/// Ticks since the last use. A use in the future counts as a use now.
fn lru_age(access: u32, tick: u64) -> u64 {
    let age = (tick as u32).wrapping_sub(access);
    if age >> (u32::BITS - 1) == 0 { u64::from(age) } else { 0 }
}

/// Units since the last use. A use in the future counts as a use now.
fn lfu_age(access: u32, tick: u64, unit: u32) -> u64 {
    let now = (tick / u64::from(unit)) as u32;
    let age = now.wrapping_sub(access >> FREQUENCY_BITS) & ((1 << TIME_BITS) - 1);
    if age >> (TIME_BITS - 1) == 0 { u64::from(age) } else { 0 }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn codec(order: EvictionOrder, ttl: Option<Ttl>) -> AccessCodec {
        AccessCodec::new(&EvictionPolicy { order, ttl, ..EvictionPolicy::default() })
    }

    fn lfu_with(half_life: u32, ttl: Option<Ttl>) -> AccessCodec {
        codec(EvictionOrder::Lfu { half_life }, ttl)
    }

    /// The access metadata after uses at these ticks, in ascending order.
    fn access_after(codec: &AccessCodec, ticks: &[u64]) -> u32 {
        ticks[1..].iter().fold(codec.first_use(ticks[0]), |access, tick| codec.after_use(access, *tick))
    }

    #[test]
    fn seconds_count_where_the_time_to_live_is_in_seconds() {
        let moment = TableTime { steps: 7, seconds: 90 };
        assert_eq!(codec(EvictionOrder::Lru, None).tick(moment), 7);
        assert_eq!(codec(EvictionOrder::Lru, Some(Ttl::Steps(5))).tick(moment), 7);
        assert_eq!(codec(EvictionOrder::Lru, Some(Ttl::Seconds(5))).tick(moment), 90);
    }

    #[test]
    fn rebased_access_metadata_keeps_its_age_in_seconds_and_its_step() {
        let [then, now] = [(700, 1_700_000_000), (3, 12)].map(|(steps, seconds)| TableTime { steps, seconds });
        let by_seconds = codec(EvictionOrder::Lru, Some(Ttl::Seconds(60)));
        let aged = |age: u64, later: u64| {
            let first = by_seconds.first_use(then.seconds - age);
            let access = by_seconds.rebase(first, then, now, StepClock::GoesOn);
            assert_eq!(access, by_seconds.rebase(first, then, now, StepClock::Restarts));
            by_seconds.is_expired(access, now.seconds + later)
        };
        assert_eq!([aged(59, 0), aged(59, 1), aged(60, 0), aged(0, 59), aged(0, 60)], [false, true, true, false, true]);
        let (ttl, unit) = (16_000, 1000);
        let lfu = lfu_with(1 << 20, Some(Ttl::Seconds(ttl)));
        for age in [0, 1, 999, 1000, 5500, 15_999] {
            let access = lfu.rebase(lfu.first_use(then.seconds - age), then, now, StepClock::GoesOn);
            let left = u64::from(ttl) - age;
            assert!(!lfu.is_expired(access, now.seconds + left - 1), "{age}");
            assert!(lfu.is_expired(access, now.seconds + left + 3 * unit), "{age}");
        }
        let by_steps = codec(EvictionOrder::Lru, Some(Ttl::Steps(60)));
        assert_eq!(by_steps.rebase(by_steps.first_use(650), then, now, StepClock::GoesOn), by_steps.first_use(650));
    }

    /// LFU with a half-life shorter than its units, and with a time to live of many half-lives.
    #[test]
    fn lfu_of_a_short_half_life_sees_that_a_row_is_old() {
        for half_life in [1, 10, 63, 64, 10_000] {
            let codec = lfu_with(half_life, None);
            let old = codec.first_use(0);
            for now in [1 << 19, 1 << 20, 3 << 20] {
                assert!(codec.rank(old, now) < codec.rank(codec.first_use(now), now), "{half_life}: {now}");
            }
            for ttl in [1_u64 << 20, (1 << 24) + 1, u64::from(u32::MAX)] {
                let codec = lfu_with(half_life, Some(Ttl::Steps(ttl as u32)));
                let access = codec.first_use(0);
                assert!(!codec.is_expired(access, ttl - 1), "{half_life}: {ttl}");
                let late = [ttl + ttl / 8, 2 * ttl, 3 * ttl];
                assert!(late.into_iter().all(|now| codec.is_expired(access, now)), "{half_life}: {ttl}");
            }
        }
    }

    proptest! {
        /// A model of `saved` steps has a row that was last used at step `used`. A run that starts from it is at step `now`, and has
        /// used another row of the model at step `later`.
        #[test]
        fn rows_of_a_model_rank_below_rows_that_the_run_uses(
            saved in 1_u64..1 << 24, used in 0_u64..1 << 24, later in 1_u64..1 << 20, now in 0_u64..1 << 20,
            ttl in prop::option::of(1_u32..1 << 22), half_life in 1_u32..1 << 16, uses in 1_usize..20,
        ) {
            let (used, now) = (used.min(saved), now.max(later));
            let [then, start] = [saved, 0].map(|steps| TableTime { steps, seconds: 5 });
            for order in [EvictionOrder::Lru, EvictionOrder::Lfu { half_life }] {
                let codec = codec(order, ttl.map(Ttl::Steps));
                let loaded = codec.rebase(access_after(&codec, &vec![used; uses]), then, start, StepClock::Restarts);
                let again = codec.after_use(loaded, later);
                prop_assert!(codec.rank(loaded, now) <= codec.rank(again, now), "{:?}", order);
                if order == EvictionOrder::Lru {
                    prop_assert!(codec.rank(loaded, now) <= codec.rank(codec.first_use(later), now));
                }
                if let Some(ttl) = ttl.map(u64::from) {
                    // No row is older than the run, and each expires in it.
                    prop_assert!(!codec.is_expired(loaded, ttl - 1), "{:?}", order);
                    prop_assert!(codec.is_expired(loaded, ttl + (ttl / 8).max(2)), "{:?}", order);
                }
            }
        }

        /// Of two rows of a model, the one that would have left first leaves first.
        #[test]
        fn rows_of_a_model_keep_their_order(
            a in 0_u64..1 << 20, b in 0_u64..1 << 20, half_life in 1_u32..1 << 16, now in 0_u64..1 << 20,
        ) {
            let saved = 1 << 20;
            let [then, start] = [saved, 0].map(|steps| TableTime { steps, seconds: 5 });
            for order in [EvictionOrder::Lru, EvictionOrder::Lfu { half_life }] {
                let codec = codec(order, None);
                let rank = |used: u64, at: u64| {
                    let access = codec.first_use(used);
                    [codec.rank(access, saved), codec.rank(codec.rebase(access, then, start, StepClock::Restarts), at)]
                };
                let ([then_a, now_a], [then_b, now_b]) = (rank(a, now), rank(b, now));
                prop_assert_eq!(then_a.cmp(&then_b), now_a.cmp(&now_b), "{:?}", order);
            }
        }

        #[test]
        fn lru_ranks_by_last_use_across_the_turn_of_the_clock(start: u64, a in 0_u64..1 << 31, b in 0_u64..1 << 31) {
            let codec = codec(EvictionOrder::Lru, None);
            let now = (start >> 2) + a.max(b);
            let rank = |age: u64| codec.rank(codec.first_use(now - age), now);
            prop_assert_eq!(rank(a).cmp(&rank(b)), b.cmp(&a));
        }

        #[test]
        fn a_row_expires_at_its_age_and_ranks_below_all_others(start: u64, ttl in 1_u32..1 << 30, late in 0_u64..1000) {
            let codec = codec(EvictionOrder::Lru, Some(Ttl::Steps(ttl)));
            let (first, end) = (start >> 1, (start >> 1) + u64::from(ttl));
            let access = codec.first_use(first);
            prop_assert!(!codec.is_expired(access, end - 1) && codec.is_expired(access, end + late));
            prop_assert!(codec.rank(access, end) == EXPIRED && codec.rank(access, end - 1) > EXPIRED);
            prop_assert!(!codec.is_expired(codec.after_use(access, end), end));
        }

        #[test]
        fn lfu_expires_at_most_two_units_late_and_never_early(
            start: u64, ttl in 1_u32..1 << 24, half_life in 1_u32..1 << 24,
        ) {
            let codec = lfu_with(half_life, Some(Ttl::Steps(ttl)));
            let (first, ttl) = (start >> 1, u64::from(ttl));
            let access = codec.first_use(first);
            prop_assert!(!codec.is_expired(access, first + ttl - 1));
            prop_assert!(codec.is_expired(access, first + ttl + (ttl / 8).max(2)));
        }

        /// Compares with the sum that the frequency stands for: Σ 2^(−age / half-life).
        #[test]
        fn lfu_is_a_count_that_halves(gaps in prop::collection::vec(0_u64..3000, 1..60)) {
            const HALF_LIFE: u64 = 1000;
            let codec = lfu_with(HALF_LIFE as u32, None);
            let ticks: Vec<u64> = gaps.iter().scan(1_u64 << 40, |tick, gap| { *tick += gap; Some(*tick) }).collect();
            let now = ticks[ticks.len() - 1];
            let exact: f64 = ticks.iter().map(|tick| (-((now - tick) as f64) / HALF_LIFE as f64).exp2()).sum();
            let found = codec.frequency(access_after(&codec, &ticks), now) as f64 / 256.0;
            // One unit is 31 ticks, a 32nd of a half-life. The rounding errors of several uses partly cancel.
            prop_assert!((found - exact.log2()).abs() < 0.06, "{} for {}", found, exact.log2());
        }
    }

    #[test]
    fn lfu_keeps_rows_that_are_used_often_until_the_uses_are_old() {
        let codec = lfu_with(100, None);
        let (often, recent) = (access_after(&codec, &[1000; 16]), codec.first_use(1250));
        assert!(codec.rank(often, 1250) > codec.rank(recent, 1250));
        let recent = codec.first_use(1500);
        assert!(codec.rank(often, 1500) < codec.rank(recent, 1500));
    }

    #[test]
    fn a_use_in_the_future_counts_as_a_use_now() {
        for codec in [codec(EvictionOrder::Lru, Some(Ttl::Steps(10))), lfu_with(10, Some(Ttl::Steps(10)))] {
            let access = codec.first_use(1 << 16);
            assert!(!codec.is_expired(access, 5));
            assert_eq!(codec.rank(access, 5), codec.rank(codec.first_use(5), 5));
        }
    }

    #[test]
    fn uses_without_end_stay_in_their_bits() {
        let codec = lfu_with(1000, None);
        let access = access_after(&codec, &[77_000; 100_000]);
        assert_eq!(access >> FREQUENCY_BITS, 77_000 / 31);
        assert!((8..=9).contains(&(codec.frequency(access, 77_000) >> FRACTION_BITS)));
    }
}
