//! Writes a page with one chart to standard output: `cargo run --example line_chart > chart.html`.

use zagros_plumbing::chart::html::render_document;
use zagros_plumbing::chart::{Chart, ChartSeries};

fn main() {
    let loss = (1..=200).map(|step| (f64::from(step), 0.3 + 0.4 / f64::from(step).sqrt())).collect();
    let chart = Chart {
        title: "Loss",
        subtitle: "logloss of a batch, nats",
        series: vec![ChartSeries { name: "training", colour: 0, dots: false, points: loss }],
        ..Chart::default()
    };
    // There is no figure of a chart without points.
    let figure = chart.render_figure().unwrap_or_default();
    println!("{}", render_document("Loss by step", &format!("<div class=\"charts\">{figure}</div>")));
}
