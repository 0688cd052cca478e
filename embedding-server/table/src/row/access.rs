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

use crate::{EvictionOrder, EvictionPolicy, TableTime, Ttl};

/// Bits of a frequency, and bits of its fraction.
const FREQUENCY_BITS: u32 = 12;
const FRACTION_BITS: u32 = 8;
/// Bits of the time next to a frequency.
const TIME_BITS: u32 = u32::BITS - FREQUENCY_BITS;
/// Units of time in a half-life, and units in a time to live.
const UNITS_PER_HALF_LIFE: u32 = 32;
const UNITS_PER_TTL: u32 = 16;
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
    pub(crate) fn new(retention: &EvictionPolicy) -> Self {
        let order = match retention.order {
            EvictionOrder::Lru => AccessKind::Lru,
            EvictionOrder::Lfu { half_life } => {
                let longest = match retention.ttl {
                    Some(Ttl::Steps(ttl) | Ttl::Seconds(ttl)) => ttl / UNITS_PER_TTL,
                    None => u32::MAX,
                };
                let unit = (half_life / UNITS_PER_HALF_LIFE).min(longest).max(1);
                AccessKind::Lfu { half_life, unit, sums: (0..LONGEST_SUM).map(sum_of).collect() }
            }
        };
        Self { order, ttl: retention.ttl }
    }

    /// How many ticks a row lives after its last use.
    pub(crate) fn ttl(&self) -> Option<u64> {
        self.ttl.map(|ttl| match ttl {
            Ttl::Steps(ttl) | Ttl::Seconds(ttl) => u64::from(ttl),
        })
    }

    /// The tick of a moment.
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

    /// The access metadata of a row at its first use.
    pub(crate) fn first(&self, tick: u64) -> u32 {
        match &self.order {
            AccessKind::Lru => tick as u32,
            AccessKind::Lfu { unit, .. } => lfu(tick / u64::from(*unit), 0),
        }
    }

    /// The access metadata of a row after one more use.
    #[inline]
    pub(crate) fn used(&self, access: u32, tick: u64) -> u32 {
        let AccessKind::Lfu { unit, sums, .. } = &self.order else {
            return tick as u32;
        };
        let frequency = self.frequency(access, tick);
        let sum = |difference: i64| sums.get(difference.unsigned_abs() as usize).map_or(0, |sum| i64::from(*sum));
        lfu(tick / u64::from(*unit), frequency.max(0) + sum(frequency))
    }

    /// Access metadata of the same age in this process. It was written at the time `then` of another process, and it is
    /// read at the time `now` of this one. Steps are equal in both processes. Seconds are those of one process.
    pub(crate) fn rebased(&self, access: u32, then: TableTime, now: TableTime) -> u32 {
        match self.ttl {
            Some(Ttl::Seconds(_)) => access.wrapping_add((now.seconds as u32).wrapping_sub(then.seconds as u32)),
            Some(Ttl::Steps(_)) | None => access,
        }
    }

    /// Whether a row is past its time to live. With LFU the answer may be up to two units late, but never early.
    #[inline]
    pub(crate) fn expired(&self, access: u32, tick: u64) -> bool {
        let Some(Ttl::Steps(ttl) | Ttl::Seconds(ttl)) = self.ttl else {
            return false;
        };
        let age = match &self.order {
            AccessKind::Lru => lru_age(access, tick),
            AccessKind::Lfu { unit, .. } => lfu_age(access, tick, *unit).saturating_sub(1) * u64::from(*unit),
        };
        age >= u64::from(ttl)
    }

    /// Rows of lower rank are evicted first.
    #[inline]
    pub(crate) fn rank(&self, access: u32, tick: u64) -> u32 {
        if self.expired(access, tick) {
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
                let then = i64::from(access & ((1 << FREQUENCY_BITS) - 1));
                then - ((age << FRACTION_BITS) / u64::from(*half_life)) as i64
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
    fn after(codec: &AccessCodec, ticks: &[u64]) -> u32 {
        ticks[1..].iter().fold(codec.first(ticks[0]), |access, tick| codec.used(access, *tick))
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
            let access = by_seconds.rebased(by_seconds.first(then.seconds - age), then, now);
            by_seconds.expired(access, now.seconds + later)
        };
        assert_eq!([aged(59, 0), aged(59, 1), aged(60, 0), aged(0, 59), aged(0, 60)], [false, true, true, false, true]);
        let by_steps = codec(EvictionOrder::Lru, Some(Ttl::Steps(60)));
        assert_eq!(by_steps.rebased(by_steps.first(650), then, now), by_steps.first(650));
    }

    proptest! {
        #[test]
        fn lru_ranks_by_last_use_across_the_turn_of_the_clock(start: u64, a in 0_u64..1 << 31, b in 0_u64..1 << 31) {
            let codec = codec(EvictionOrder::Lru, None);
            let now = (start >> 2) + a.max(b);
            let rank = |age: u64| codec.rank(codec.first(now - age), now);
            prop_assert_eq!(rank(a).cmp(&rank(b)), b.cmp(&a));
        }

        #[test]
        fn a_row_expires_at_its_age_and_ranks_below_all_others(start: u64, ttl in 1_u32..1 << 30, late in 0_u64..1000) {
            let codec = codec(EvictionOrder::Lru, Some(Ttl::Steps(ttl)));
            let (first, end) = (start >> 1, (start >> 1) + u64::from(ttl));
            let access = codec.first(first);
            prop_assert!(!codec.expired(access, end - 1) && codec.expired(access, end + late));
            prop_assert!(codec.rank(access, end) == EXPIRED && codec.rank(access, end - 1) > EXPIRED);
            prop_assert!(!codec.expired(codec.used(access, end), end));
        }

        #[test]
        fn lfu_expires_at_most_two_units_late_and_never_early(
            start: u64, ttl in 1_u32..1 << 24, half_life in 1_u32..1 << 24,
        ) {
            let codec = lfu_with(half_life, Some(Ttl::Steps(ttl)));
            let (first, ttl) = (start >> 1, u64::from(ttl));
            let access = codec.first(first);
            prop_assert!(!codec.expired(access, first + ttl - 1));
            prop_assert!(codec.expired(access, first + ttl + (ttl / 8).max(2)));
        }

        /// Compares with the sum that the frequency stands for: Σ 2^(−age / half-life).
        #[test]
        fn lfu_is_a_count_that_halves(gaps in prop::collection::vec(0_u64..3000, 1..60)) {
            const HALF_LIFE: u64 = 1000;
            let codec = lfu_with(HALF_LIFE as u32, None);
            let ticks: Vec<u64> = gaps.iter().scan(1_u64 << 40, |tick, gap| { *tick += gap; Some(*tick) }).collect();
            let now = ticks[ticks.len() - 1];
            let exact: f64 = ticks.iter().map(|tick| (-((now - tick) as f64) / HALF_LIFE as f64).exp2()).sum();
            let found = codec.frequency(after(&codec, &ticks), now) as f64 / 256.0;
            // One unit is 31 ticks, a 32nd of a half-life. The rounding errors of several uses partly cancel.
            prop_assert!((found - exact.log2()).abs() < 0.06, "{} for {}", found, exact.log2());
        }
    }

    #[test]
    fn lfu_keeps_rows_that_are_used_often_until_the_uses_are_old() {
        let codec = lfu_with(100, None);
        let (often, recent) = (after(&codec, &[1000; 16]), codec.first(1250));
        assert!(codec.rank(often, 1250) > codec.rank(recent, 1250));
        let recent = codec.first(1500);
        assert!(codec.rank(often, 1500) < codec.rank(recent, 1500));
    }

    #[test]
    fn a_use_in_the_future_counts_as_a_use_now() {
        for codec in [codec(EvictionOrder::Lru, Some(Ttl::Steps(10))), lfu_with(10, Some(Ttl::Steps(10)))] {
            let access = codec.first(1 << 16);
            assert!(!codec.expired(access, 5));
            assert_eq!(codec.rank(access, 5), codec.rank(codec.first(5), 5));
        }
    }

    #[test]
    fn uses_without_end_stay_in_their_bits() {
        let codec = lfu_with(1000, None);
        let access = after(&codec, &[77_000; 100_000]);
        assert_eq!(access >> FREQUENCY_BITS, 77_000 / 31);
        assert!((8..=9).contains(&(codec.frequency(access, 77_000) >> FRACTION_BITS)));
    }
}
