//! The linear part of a law, exactly: non-negative coefficients of at most three columns that minimise the Huber loss of the residuals.
//!
//! Non-negative least squares of so few columns tries every set of columns that are not zero: the best of those without a negative
//! coefficient is the minimum. Huber's loss (1964) is minimised by least squares whose weights follow from the residuals, again and again.

use zagros_zip::ZipEq;

/// Columns: the constant, and at most two power laws.
pub(crate) const MOST: usize = 3;
/// Rounds of weighted least squares at most. Of few rows, most of them far from the law, the coefficients come near the minimum slowly.
const ROUNDS: usize = 1000;
/// Relative change of the coefficients at which they end.
const SETTLED: f64 = 1e-7;

/// Values of one row of the matrix; unused columns are 0.
pub(crate) type Row = [f64; MOST];

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LinearSolution {
    /// At least 0 each.
    pub(crate) coefficients: Row,
    /// Mean Huber loss of the residuals.
    pub(crate) objective: f64,
}

/// Coefficients of the first `columns` columns. `delta` is the residual from which Huber's loss is linear; infinity for least squares.
pub(crate) fn solve(rows: &[Row], targets: &[f64], columns: usize, delta: f64) -> LinearSolution {
    debug_assert_eq!(rows.len(), targets.len());
    let residual = |coefficients: &Row, place: usize| {
        targets[place] - rows[place].iter().enumerate().map(|(column, value)| value * coefficients[column]).sum::<f64>()
    };
    let mut weights = vec![1.0; rows.len()];
    let mut coefficients = least_squares(rows, targets, &weights, columns);
    if delta.is_finite() {
        for _ in 0..ROUNDS {
            for (place, weight) in weights.iter_mut().enumerate() {
                *weight = (delta / residual(&coefficients, place).abs()).min(1.0);
            }
            let next = least_squares(rows, targets, &weights, columns);
            let change = (0..MOST).map(|column| (next[column] - coefficients[column]).abs()).fold(0.0, f64::max);
            let size = next.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
            coefficients = next;
            if change <= SETTLED * size {
                break;
            }
        }
    }
    let losses = (0..rows.len()).map(|place| huber(residual(&coefficients, place), delta));
    LinearSolution { coefficients, objective: losses.sum::<f64>() / rows.len().max(1) as f64 }
}

pub(crate) fn huber(residual: f64, delta: f64) -> f64 {
    let size = residual.abs();
    if size <= delta { 0.5 * size * size } else { delta * (size - 0.5 * delta) }
}

fn least_squares(rows: &[Row], targets: &[f64], weights: &[f64], columns: usize) -> Row {
    let mut matrix = [[0.0; MOST]; MOST];
    let mut right = [0.0; MOST];
    for (place, row) in rows.iter().enumerate() {
        for i in 0..columns {
            let weighted = weights[place] * row[i];
            right[i] += weighted * targets[place];
            for j in 0..columns {
                matrix[i][j] += weighted * row[j];
            }
        }
    }
    let (mut best, mut gain) = ([0.0; MOST], 0.0);
    for set in 1_usize..1 << columns {
        let Some(found) = solve_set(&matrix, &right, set) else { continue };
        // The sum of squares that it explains, at the minimum of this set.
        let explained: f64 = (0..MOST).map(|column| found[column] * right[column]).sum();
        if found.iter().all(|value| *value >= 0.0) && explained > gain {
            (best, gain) = (found, explained);
        }
    }
    best
}

/// Solves the normal equations of the columns in a set by elimination with pivots; `None` where they depend on each other.
fn solve_set(matrix: &[[f64; MOST]; MOST], right: &Row, set: usize) -> Option<Row> {
    let chosen: Vec<usize> = (0..MOST).filter(|column| set >> column & 1 == 1).collect();
    let count = chosen.len();
    let mut system = [[0.0; MOST + 1]; MOST];
    for (i, row) in chosen.iter().enumerate() {
        for (j, column) in chosen.iter().enumerate() {
            system[i][j] = matrix[*row][*column];
        }
        system[i][count] = right[*row];
    }
    for step in 0..count {
        let pivot = (step..count).max_by(|a, b| system[*a][step].abs().total_cmp(&system[*b][step].abs()))?;
        system.swap(step, pivot);
        let scale = matrix[chosen[step]][chosen[step]].abs();
        if system[step][step].abs() <= 1e-13 * scale || scale == 0.0 {
            return None;
        }
        for row in step + 1..count {
            let factor = system[row][step] / system[step][step];
            let pivot_row = system[step];
            for (value, pivot) in system[row].iter_mut().zip_eq(pivot_row).skip(step) {
                *value -= factor * pivot;
            }
        }
    }
    let mut found = [0.0; MOST];
    for step in (0..count).rev() {
        let known: f64 = (step + 1..count).map(|column| system[step][column] * found[chosen[column]]).sum();
        found[chosen[step]] = (system[step][count] - known) / system[step][step];
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_linear_is_found_exactly() {
        let rows: Vec<Row> = (1..20).map(|x| [1.0, 1.0 / f64::from(x), f64::from(x % 3)]).collect();
        let targets: Vec<f64> = rows.iter().map(|row| 0.4 + 2.0 * row[1] + 0.5 * row[2]).collect();
        for delta in [f64::INFINITY, 1e-3] {
            let LinearSolution { coefficients, objective } = solve(&rows, &targets, 3, delta);
            assert!(objective < 1e-20, "{objective}");
            for (found, planted) in coefficients.iter().zip_eq([0.4, 2.0, 0.5]) {
                assert!((found - planted).abs() < 1e-9, "{coefficients:?}");
            }
        }
    }

    #[test]
    fn columns_that_depend_on_each_other_are_no_problem() {
        let rows: Vec<Row> = (0..9).map(|x| [1.0, 2.0, f64::from(x)]).collect();
        let targets: Vec<f64> = rows.iter().map(|row| 3.0 + row[2]).collect();
        let LinearSolution { coefficients, objective } = solve(&rows, &targets, 3, f64::INFINITY);
        assert!(objective < 1e-18 && coefficients.iter().all(|value| *value >= 0.0), "{coefficients:?}");
    }

    proptest! {
        /// No change of one coefficient that keeps it at least 0 makes the objective smaller.
        #[test]
        fn the_solution_is_a_minimum(
            values in prop::collection::vec((0.0_f64..1.0, 0.0_f64..1.0, -1.0_f64..2.0), 6..30),
            delta in prop::sample::select(vec![f64::INFINITY, 0.3]),
        ) {
            let rows: Vec<Row> = values.iter().map(|(one, two, _)| [1.0, *one, *two]).collect();
            let targets: Vec<f64> = values.iter().map(|(.., target)| *target).collect();
            let solved = solve(&rows, &targets, 3, delta);
            let objective = |coefficients: &Row| {
                let residual = |place: usize| targets[place] - (0..MOST).map(|column| rows[place][column] * coefficients[column]).sum::<f64>();
                (0..rows.len()).map(|place| huber(residual(place), delta)).sum::<f64>() / rows.len() as f64
            };
            prop_assert!((objective(&solved.coefficients) - solved.objective).abs() < 1e-12);
            for column in 0..MOST {
                prop_assert!(solved.coefficients[column] >= 0.0);
                for step in [-1e-2, 1e-2] {
                    let mut other = solved.coefficients;
                    other[column] = (other[column] + step).max(0.0);
                    prop_assert!(objective(&other) >= solved.objective - 1e-6, "{column} {step}: {:?}", solved);
                }
            }
        }
    }
}
