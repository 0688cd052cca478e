//! Curves over steps as inline SVG, without a script and without a font of their own.

use std::fmt::Write;

use crate::chart::axis::{AxisRange, most_of, thin_points, tick_label};
use crate::chart::html::escape_html;
use crate::chart::{ChartFrame, render_legend};

/// Size of the drawing in its own units, which are pixels on a phone.
const SIZE: (f64, f64) = (420.0, 230.0);
/// Room for labels: left, top, right, bottom.
const ROOM: (f64, f64, f64, f64) = (46.0, 12.0, 12.0, 34.0);
/// Most points of a curve: about two a pixel of a wide screen.
const POINTS: usize = 1200;

#[derive(Clone, Debug, Default)]
pub struct Chart {
    pub title: &'static str,
    /// What is drawn, and its unit.
    pub subtitle: &'static str,
    /// What the horizontal axis counts; steps when empty.
    pub across: &'static str,
    pub series: Vec<ChartSeries>,
    /// A step that matters, and why.
    pub mark: Option<(u64, &'static str)>,
    pub from_zero: bool,
}

#[derive(Clone, Debug)]
pub struct ChartSeries {
    pub name: &'static str,
    /// Number of its colour, from 0.
    pub colour: usize,
    /// Whether each point is drawn, as is right where they are few.
    pub dots: bool,
    /// Step and value, in order.
    pub points: Vec<(f64, f64)>,
}

impl Chart {
    pub fn render_figure(&self) -> Option<String> {
        let frame = self.frame()?;
        let drawn: Vec<&ChartSeries> = self.series.iter().filter(|series| !series.points.is_empty()).collect();
        let entry = |series: &&ChartSeries| (series.colour, series.name, series.dots);
        // One curve needs no legend: the title names it.
        let legend = if drawn.len() < 2 { String::new() } else { render_legend(drawn.iter().map(entry)) };
        let across = if self.across.is_empty() { "step" } else { self.across };
        // Steps and days are whole.
        let wanted = ((frame.across.high - frame.across.low) as usize).clamp(1, 5);
        let ticks = [(frame.across, wanted), (frame.up, 5)].map(|(range, wanted)| {
            let values = range.round_ticks(wanted);
            let step = values.get(1).map_or(1.0, |second| second - values[0]);
            values.into_iter().map(|value| (value, tick_label(value, step))).collect()
        });
        Some(frame.render_figure([self.title, self.subtitle], &legend, (across, ticks), |svg| {
            self.draw_mark(&frame, svg);
            drawn.iter().for_each(|series| series.draw(&frame, svg));
        }))
    }

    fn frame(&self) -> Option<ChartFrame> {
        let all = || self.series.iter().flat_map(|series| series.points.iter().copied());
        let across = AxisRange::from_values(all().map(|point| point.0))?;
        let drawn = |dots: bool| self.series.iter().filter(move |series| series.dots == dots);
        let of_curves: Vec<f64> = drawn(false).flat_map(|series| series.points.iter().map(|point| point.1)).collect();
        // A scale from zero shows the largest value: it is often a bound.
        let curves = if self.from_zero { AxisRange::from_values(of_curves) } else { most_of(of_curves) };
        let dots = AxisRange::from_values(drawn(true).flat_map(|series| series.points.iter().map(|point| point.1)));
        let values = match (curves, dots) {
            (Some(one), Some(other)) => AxisRange { low: one.low.min(other.low), high: one.high.max(other.high) },
            (one, other) => one.or(other)?,
        };
        let up =
            if self.from_zero { AxisRange { low: 0.0, high: values.high * 1.08 } } else { values.with_margin(0.06) };
        (up.high > up.low).then_some(ChartFrame { size: SIZE, room: ROOM, across, up })
    }

    fn draw_mark(&self, frame: &ChartFrame, svg: &mut String) {
        let Some((step, why)) = self.mark else { return };
        let x = frame.x(step as f64);
        let anchor = if frame.across.relative_position(step as f64) > 0.5 { "end" } else { "start" };
        let text_x = if anchor == "end" { x - 4.0 } else { x + 4.0 };
        let (top, bottom) = (ROOM.1, SIZE.1 - ROOM.3);
        let _ = writeln!(svg, r#"<line class="mark" x1="{x:.1}" x2="{x:.1}" y1="{top}" y2="{bottom}"/>"#);
        let (y, why) = (bottom - 5.0, escape_html(why));
        let _ = writeln!(svg, r#"<text class="why" x="{text_x:.1}" y="{y}" text-anchor="{anchor}">{why}</text>"#);
    }
}

impl ChartSeries {
    fn draw(&self, frame: &ChartFrame, svg: &mut String) {
        let inside = |point: &(f64, f64)| point.0.is_finite() && point.1.is_finite();
        let points: Vec<(f64, f64)> = self.points.iter().copied().filter(inside).collect();
        let colour = self.colour;
        let place = |(x, y)| format!("{:.1},{:.1} ", frame.x(x), frame.y(y));
        let path: String = thin_points(&points, POINTS).into_iter().map(place).collect();
        let _ = writeln!(svg, r#"<polyline class="curve c{colour}" points="{}"/>"#, path.trim_end());
        for (x, y) in points.iter().filter(|_| self.dots) {
            let (cx, cy, name) = (frame.x(*x), frame.y(*y), escape_html(self.name));
            let title = format!("<title>{name} after step {x}: {y:.4}</title>");
            let _ = writeln!(svg, r#"<circle class="c{colour}" cx="{cx:.1}" cy="{cy:.1}" r="3.5">{title}</circle>"#);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(name: &'static str, dots: bool, points: &[(f64, f64)]) -> ChartSeries {
        ChartSeries { name, colour: usize::from(dots), dots, points: points.to_vec() }
    }

    #[test]
    fn nothing_to_draw_is_no_figure() {
        assert!(Chart::default().render_figure().is_none());
        let nan = Chart { series: vec![series("a", false, &[(1.0, f64::NAN)])], ..Chart::default() };
        assert!(nan.render_figure().is_none());
        let zeros =
            Chart { series: vec![series("a", false, &[(1.0, 0.0), (2.0, 0.0)])], from_zero: true, ..Chart::default() };
        assert!(zeros.render_figure().is_some(), "a curve of zeros is worth a line");
    }

    #[test]
    fn curves_dots_legend_and_mark_are_drawn() {
        let training = series("training", false, &[(1.0, 0.6), (2.0, 0.7)]);
        let validation = series("validation", true, &[(1.0, 0.65), (2.0, 0.75)]);
        let (title, series, mark) = ("AUC <by step>", vec![training, validation], Some((2, "best")));
        let figure = Chart { title, series, mark, ..Chart::default() }.render_figure().unwrap();
        assert_eq!(figure.matches("<polyline").count(), 2);
        assert_eq!(figure.matches("<circle").count(), 2);
        assert!(figure.contains("AUC &lt;by step&gt;") && !figure.contains("<by step>"), "{figure}");
        assert!(figure.contains("validation after step 2: 0.7500") && figure.contains(">best</text>"), "{figure}");
        assert!(figure.contains(">1</text>") && !figure.contains(">1.2</text>"), "steps are whole: {figure}");
        let places = figure.split("points=\"").nth(1).unwrap();
        assert!(places.starts_with("46.0,"), "the first step is at the left edge: {places}");
    }

    #[test]
    fn everything_lies_on_the_drawing() {
        let points: Vec<(f64, f64)> = (0..5000).map(|x| (f64::from(x), if x == 7 { 1e9 } else { 0.1 })).collect();
        let figure = Chart { series: vec![series("a", false, &points)], ..Chart::default() }.render_figure().unwrap();
        let places = figure.split("points=\"").nth(1).unwrap().split('"').next().unwrap();
        for place in places.split(' ') {
            let (x, y) = place.split_once(',').unwrap();
            let (x, y): (f64, f64) = (x.parse().unwrap(), y.parse().unwrap());
            assert!((ROOM.0..=SIZE.0).contains(&x) && (ROOM.1..=SIZE.1).contains(&y), "{place}");
        }
    }
}
