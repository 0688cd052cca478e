//! The figures as a page that opens offline: the cost of a sample by the number of rows.

use zagros_plumbing::chart::html::{escape_html, render_document, render_table};
use zagros_plumbing::chart::{LogChart, LogMark, LogSeries};

use super::figures::{COLUMNS, CapacityFigures, CapacityPoint};
use super::table::TableFigures;

pub(super) fn page(figures: &CapacityFigures) -> String {
    let cpu = chart(figures, "CPU time of a sample", |found| found.cpu_us);
    let wall = chart(figures, "Wall time of a sample", |found| found.wall_us);
    let charts: String = [cpu, wall].iter().filter_map(LogChart::render_figure).collect();
    let rows: Vec<(&str, Vec<String>)> =
        figures.points.iter().flat_map(CapacityPoint::table_lines).map(|cells| ("", cells.to_vec())).collect();
    let goals: String = figures.goal_sentences().iter().map(|goal| format!("<p>{}</p>", escape_html(goal))).collect();
    let body = format!(
        "<h1>Rows beyond memory</h1>\n<p class=\"lead\">{}</p>{goals}\n<div class=\"charts\">{charts}</div>\n<h2>Figures</h2>{}",
        escape_html(&figures.lead_sentence()),
        render_table(&COLUMNS, &rows)
    );
    render_document("Rows beyond memory", &body)
}

fn chart(figures: &CapacityFigures, title: &str, of: fn(&TableFigures) -> f64) -> LogChart {
    let points = |which: fn(&CapacityPoint) -> Option<TableFigures>| {
        let found = figures.points.iter().filter_map(|point| Some((point.rows as f64, of(&which(point)?))));
        found.collect::<Vec<_>>()
    };
    let line = |name: &str, colour, points| LogSeries { name: name.to_owned(), colour, mark: LogMark::Line, points };
    let series = vec![
        line("all rows in memory", 0, points(|point| point.in_memory)),
        line(&format!("{:.0} % in memory", figures.share * 100.0), 1, points(|point| point.on_disk)),
    ];
    LogChart { title: title.to_owned(), subtitle: "µs".to_owned(), across: "rows".to_owned(), series }
}

#[cfg(test)]
mod tests {
    use super::super::figures::tests::example_figures;
    use super::*;

    #[test]
    fn both_curves_are_drawn_and_every_point_is_listed() {
        let page = page(&example_figures());
        assert_eq!(page.matches("<figure>").count(), 2);
        assert!(page.contains("all rows in memory") && page.contains("10 % in memory"));
        assert!(page.contains("<td>10000</td>") && page.contains("2.00 × the CPU"));
    }
}
