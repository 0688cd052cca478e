//! The arithmetic of an axis: ranges, round ticks, labels, and fewer points for a curve.

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AxisRange {
    pub low: f64,
    pub high: f64,
}

impl AxisRange {
    /// The range of all finite values; `None` if there is none. A single value gets room on both sides.
    pub fn from_values(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let widen = |range: Option<Self>, value: f64| {
            let Self { low, high } = range.unwrap_or(Self { low: value, high: value });
            Some(Self { low: low.min(value), high: high.max(value) })
        };
        let range = values.into_iter().filter(|value| value.is_finite()).fold(None, widen)?;
        Some(if range.low < range.high { range } else { range.with_room(range.low.abs().max(1.0) * 0.05) })
    }

    /// The range with a share of its width added at either end.
    pub fn with_margin(self, share: f64) -> Self {
        self.with_room((self.high - self.low) * share)
    }

    fn with_room(self, room: f64) -> Self {
        Self { low: self.low - room, high: self.high + room }
    }

    /// Where a value lies: 0 at the low end, 1 at the high end.
    pub fn relative_position(self, value: f64) -> f64 {
        (value - self.low) / (self.high - self.low)
    }

    /// About `wanted` round values inside the range: multiples of 1, 2 or 5 times a power of ten.
    ///
    /// ```
    /// use zagros_plumbing::chart::axis::AxisRange;
    ///
    /// assert_eq!(AxisRange { low: 13.0, high: 97.0 }.round_ticks(5), [20.0, 40.0, 60.0, 80.0]);
    /// ```
    pub fn round_ticks(self, wanted: usize) -> Vec<f64> {
        let least = (self.high - self.low) / wanted.max(1) as f64;
        let power = 10_f64.powf(least.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|factor| factor * power).find(|step| *step >= least);
        let step = step.unwrap_or(10.0 * power);
        let (first, last) = ((self.low / step).ceil() as i64, (self.high / step).floor() as i64);
        (first..=last).map(|number| number as f64 * step).collect()
    }
}

/// The range of most values. The lowest and the highest 2 % are ignored: the first steps of a run would flatten the rest.
pub fn most_of(mut values: Vec<f64>) -> Option<AxisRange> {
    values.retain(|value| value.is_finite());
    values.sort_unstable_by(f64::total_cmp);
    let outliers = values.len() / 50;
    AxisRange::from_values(values.get(outliers..values.len() - outliers)?.iter().copied())
}

/// About `most` points: the lowest and the highest of each stretch, so that no spike is lost.
pub fn thin_points(points: &[(f64, f64)], most: usize) -> Vec<(f64, f64)> {
    if points.len() <= most {
        return points.to_vec();
    }
    let stretch = (2 * points.len()).div_ceil(most.max(2));
    let ends = |points: &[(f64, f64)]| {
        let by_value = |a: &&(f64, f64), b: &&(f64, f64)| a.1.total_cmp(&b.1);
        let (low, high) = (points.iter().min_by(by_value), points.iter().max_by(by_value));
        let mut ends: Vec<(f64, f64)> = low.into_iter().chain(high).copied().collect();
        ends.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
        ends.dedup();
        ends
    };
    points.chunks(stretch).flat_map(ends).collect()
}

/// A number as short as its neighbours on an axis allow.
pub fn tick_label(value: f64, step: f64) -> String {
    let short = |value: f64, suffix: &str| {
        let text = format!("{value:.1}");
        format!("{}{suffix}", text.strip_suffix(".0").unwrap_or(&text))
    };
    match value.abs() {
        size if size >= 1e9 => short(value / 1e9, "G"),
        size if size >= 1e6 => short(value / 1e6, "M"),
        size if size >= 1e4 => short(value / 1e3, "k"),
        _ => {
            let decimals = (-step.abs().log10().floor()).clamp(0.0, 6.0) as usize;
            format!("{value:.decimals$}")
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ticks_are_round() {
        assert_eq!(AxisRange { low: 0.0, high: 1.0 }.round_ticks(5), [0.0, 0.2, 0.4, 0.6000000000000001, 0.8, 1.0]);
        assert_eq!(AxisRange { low: 13.0, high: 97.0 }.round_ticks(4), [50.0]);
        assert_eq!(AxisRange { low: 13.0, high: 97.0 }.round_ticks(5), [20.0, 40.0, 60.0, 80.0]);
        let texts: Vec<String> =
            AxisRange { low: 0.71, high: 0.79 }.round_ticks(5).iter().map(|tick| tick_label(*tick, 0.02)).collect();
        assert_eq!(texts, ["0.72", "0.74", "0.76", "0.78"]);
    }

    #[test]
    fn labels_are_short() {
        assert_eq!(tick_label(1_500_000.0, 500_000.0), "1.5M");
        assert_eq!(tick_label(20_000.0, 5_000.0), "20k");
        assert_eq!((tick_label(2_000.0, 500.0), tick_label(0.0, 0.25)), ("2000".to_owned(), "0.0".to_owned()));
    }

    #[test]
    fn ranges_need_numbers() {
        assert_eq!(AxisRange::from_values([f64::NAN, f64::INFINITY]), None);
        assert_eq!(most_of(vec![]), None);
        let one = AxisRange::from_values([3.0]).unwrap();
        assert!(one.low < 3.0 && one.high > 3.0);
    }

    #[test]
    fn a_spike_outlives_thinning_and_does_not_stretch_the_axis() {
        let mut points: Vec<(f64, f64)> = (0..10_000).map(|x| (f64::from(x), 0.5 + f64::from(x % 7) / 100.0)).collect();
        points[5_003].1 = 9.0;
        let thin = thin_points(&points, 500);
        assert!(thin.len() <= 502 && thin.contains(&(5_003.0, 9.0)), "{}", thin.len());
        assert!(most_of(points.iter().map(|point| point.1).collect()).unwrap().high < 1.0);
    }

    proptest! {
        #[test]
        fn ticks_lie_within_and_are_few(low in -1e6_f64..1e6, width in 1e-6_f64..1e6, wanted in 1_usize..10) {
            let range = AxisRange { low, high: low + width };
            let ticks = range.round_ticks(wanted);
            prop_assert!(ticks.len() <= wanted + 1, "{ticks:?}");
            let slack = width * 1e-6;
            prop_assert!(ticks.iter().all(|tick| *tick >= low - slack && *tick <= low + width + slack), "{ticks:?}");
        }

        #[test]
        fn thinned_points_are_some_of_the_points_in_order(
            values in prop::collection::vec(-10.0_f64..10.0, 0..300), most in 2_usize..100,
        ) {
            let points: Vec<(f64, f64)> = values.into_iter().enumerate().map(|(x, y)| (x as f64, y)).collect();
            let thin = thin_points(&points, most);
            prop_assert!(thin.len() <= most.max(2) + 2, "{}", thin.len());
            prop_assert!(thin.windows(2).all(|pair| pair[0].0 < pair[1].0));
            prop_assert!(thin.iter().all(|point| points.contains(point)));
        }
    }
}
