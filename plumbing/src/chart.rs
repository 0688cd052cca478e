//! Charts as inline SVG, and the page around them. Pure: values in, text out.
//!
//! ```text
//! points ──► axis (range, ticks, labels) ──► chart (curves, dots, legend) ──► html (one page, opens offline)
//! ```

pub mod axis;
mod frame;
pub mod html;
mod line_chart;
mod log_chart;

pub use self::line_chart::{Chart, ChartSeries};
pub use self::log_chart::{COLOURS, LogChart, LogMark, LogSeries, log_ticks};
