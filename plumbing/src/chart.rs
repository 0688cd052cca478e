//! Charts as inline SVG, and the page around them. Pure: values in, text out.
//!
//! ```text
//! points ──► axis (range, ticks, labels) ──► chart (curves, dots, legend) ──► html (one page, opens offline)
//! ```

pub mod axis;
pub mod html;
mod line_chart;
mod log_chart;

pub use self::line_chart::{Chart, ChartSeries};
pub use self::log_chart::{COLOURS, LogChart, LogMark, LogSeries, log_ticks};

use std::fmt::Write;

use self::axis::AxisRange;
use self::html::escape_html;

struct ChartFrame {
    /// Size of the drawing in its own units, which are pixels on a phone.
    size: (f64, f64),
    /// Room for labels: left, top, right, bottom.
    room: (f64, f64, f64, f64),
    across: AxisRange,
    up: AxisRange,
}

/// Places on an axis with their labels.
type Ticks = Vec<(f64, String)>;

impl ChartFrame {
    fn x(&self, value: f64) -> f64 {
        self.room.0 + self.across.relative_position(value) * (self.size.0 - self.room.0 - self.room.2)
    }

    /// What is beyond the scale is drawn at its edge.
    fn y(&self, value: f64) -> f64 {
        let height = self.size.1 - self.room.1 - self.room.3;
        self.room.1 + (1.0 - self.up.relative_position(value).clamp(0.0, 1.0)) * height
    }

    /// The axes, what `draw` adds to them, and the texts above. `across` is what the horizontal axis counts, as HTML.
    fn render_figure(
        &self,
        [title, subtitle]: [&str; 2],
        legend: &str,
        (across, ticks): (&str, [Ticks; 2]),
        draw: impl FnOnce(&mut String),
    ) -> String {
        let (title, subtitle) = (escape_html(title), escape_html(subtitle));
        let (width, height) = self.size;
        let mut svg = format!(r#"<svg viewBox="0 0 {width} {height}" role="img" aria-label="{title}">"#);
        self.draw_axes(across, ticks, &mut svg);
        draw(&mut svg);
        format!("<figure><figcaption><h3>{title}</h3><p>{subtitle}</p>{legend}</figcaption>{svg}</svg></figure>")
    }

    fn draw_axes(&self, across: &str, [of_across, of_up]: [Ticks; 2], svg: &mut String) {
        let (left, right, bottom) = (self.room.0, self.size.0 - self.room.2, self.size.1 - self.room.3);
        for (value, text) in of_up {
            let (x, y) = (left - 6.0, self.y(value));
            let _ = writeln!(svg, r#"<line class="grid" x1="{left}" x2="{right}" y1="{y:.1}" y2="{y:.1}"/>"#);
            let _ = writeln!(svg, r#"<text x="{x}" y="{:.1}" text-anchor="end">{text}</text>"#, y + 3.5);
        }
        for (value, text) in of_across {
            let (x, y) = (self.x(value), bottom + 15.0);
            let _ = writeln!(svg, r#"<text x="{x:.1}" y="{y}" text-anchor="middle">{text}</text>"#);
        }
        let (x, y) = ((left + right) / 2.0, self.size.1 - 4.0);
        let _ = writeln!(svg, r#"<line class="axis" x1="{left}" x2="{right}" y1="{bottom}" y2="{bottom}"/>"#);
        let _ = writeln!(svg, r#"<text x="{x}" y="{y}" text-anchor="middle">{across}</text>"#);
    }
}

/// Each entry has its colour, its name, and whether it is of dots.
fn render_legend<'a>(entries: impl Iterator<Item = (usize, &'a str, bool)>) -> String {
    let entry = |(colour, name, dots): (usize, &str, bool)| {
        let shape = if dots { "dot" } else { "line" };
        format!(r#"<span><i class="{shape} c{colour}"></i>{}</span>"#, escape_html(name))
    };
    format!(r#"<div class="legend">{}</div>"#, entries.map(entry).collect::<String>())
}
