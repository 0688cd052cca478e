//! Gradients as whole numbers: the sum of f32 values on a grid is exact, in any order, as long as it is small enough.

use zagros_protocol::Refusal;

/// Units per 1.0.
pub const UNITS: f32 = (1_u32 << 20) as f32;

/// The most units that an f32 counts without a gap: a row value of 16.
pub const MOST_UNITS: i64 = 1 << 24;

/// A gradient in whole units.
pub fn round_to_units(value: f32) -> Result<i32, Refusal> {
    let units = (value * UNITS).round_ties_even();
    if units.abs() <= MOST_UNITS as f32 {
        return Ok(units as i32);
    }
    Err(Refusal::invalid(format!(
        "chaos: the gradient {value} is too large to be checked exactly; it may be at most 16"
    )))
}

pub fn units_to_value(units: i32) -> f32 {
    units as f32 / UNITS
}

/// The units of a row's value; `None` if it is not on the grid, or too large to be exact.
pub fn exact_units(value: f32) -> Option<i64> {
    let units = f64::from(value) * f64::from(UNITS);
    (units.fract() == 0.0 && units.abs() < MOST_UNITS as f64).then_some(units as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_rounded_gradients_are_exact_in_any_order() {
        let gradients: Vec<i32> =
            (1..2000_u16).map(|n| round_to_units((f32::from(n) * 0.37).sin() / 300.0).unwrap()).collect();
        let sum =
            |order: &mut dyn Iterator<Item = &i32>| order.fold(0.0_f32, |row, units| row - units_to_value(*units));
        let forward = sum(&mut gradients.iter());
        let backward = sum(&mut gradients.iter().rev());
        let exact: i64 = gradients.iter().map(|units| i64::from(*units)).sum();
        assert_eq!((forward.to_bits(), exact_units(forward)), (backward.to_bits(), Some(-exact)));
        assert!(exact != 0);
    }

    #[test]
    fn what_is_not_exact_is_refused() {
        for large in [f32::NAN, f32::INFINITY, -17.0] {
            assert!(round_to_units(large).is_err(), "{large}");
        }
        assert_eq!(exact_units(0.1), None);
        assert_eq!(exact_units(16.0), None);
        assert_eq!(exact_units(f32::NAN), None);
        assert_eq!(exact_units(-15.5), Some(-16_252_928));
    }
}
