//! Histograms in characters.

use zagros_rows::snapshot::NormBin;

/// Eighths of a character cell, upwards.
const UP: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const WIDTH: usize = 40;

/// One character per bin. A bin without rows is a space; a bin with any row is visible.
pub(super) fn sparkline(bins: &[NormBin]) -> String {
    let most = most(bins);
    let cell = |rows: u64| match rows {
        0 => ' ',
        rows => UP[((rows as f64 / most * 8.0).ceil() as usize).clamp(1, 8) - 1],
    };
    bins.iter().map(|bin| cell(bin.rows)).collect()
}

/// One line per bin: its range, its rows, its bar.
pub(super) fn bars(bins: &[NormBin]) -> Vec<String> {
    let most = most(bins);
    let line = |bin: &NormBin| {
        let length = (bin.rows as f64 / most * WIDTH as f64).ceil() as usize;
        let range = format!("{:>10} … {:<10} {:>12}", number(bin.from), number(bin.until), bin.rows);
        format!("{range}  {}", "█".repeat(length)).trim_end().to_owned()
    };
    bins.iter().map(line).collect()
}

/// Four significant digits. With many zeros, a power of ten.
pub(super) fn number(value: f64) -> String {
    let size = value.abs();
    if size != 0.0 && !(1e-3..1e5).contains(&size) {
        return format!("{value:.2e}");
    }
    let digits = (3 - size.max(1e-3).log10().floor() as i32).clamp(0, 6) as usize;
    format!("{value:.digits$}")
}

fn most(bins: &[NormBin]) -> f64 {
    bins.iter().map(|bin| bin.rows).max().unwrap_or(1).max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bins(rows: &[u64]) -> Vec<NormBin> {
        rows.iter().map(|rows| NormBin { from: 0.5, until: 1.0, rows: *rows }).collect()
    }

    #[test]
    fn a_single_row_among_many_is_seen_and_none_is_not() {
        assert_eq!(sparkline(&bins(&[1, 0, 1000, 500])), "▁ █▄");
        assert_eq!(sparkline(&[]), "");
        let bars = bars(&bins(&[1, 0, 1000]));
        assert!(bars[0].ends_with('█') && !bars[1].contains('█'), "{bars:?}");
        assert_eq!(bars[2].matches('█').count(), WIDTH);
    }

    #[test]
    fn numbers_keep_four_digits() {
        let shown = [0.0, 0.012_345, 1.0, -123.456, 99_999.0, 1e-7, 3e9].map(number);
        assert_eq!(shown, ["0.000000", "0.01235", "1.000", "-123.5", "99999", "1.00e-7", "3.00e9"]);
    }
}
