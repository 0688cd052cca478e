//! The figures as a page that opens offline: speed and AUC by staleness.

use super::figures::{COLUMNS, ModeCase, ModeFigures, ModeMeans};
use zagros_plumbing::chart::html::{escape_html, render_document, render_table};
use zagros_plumbing::chart::{Chart, ChartSeries};
use zagros_zip::ZipEq;

pub(super) fn page(figures: &ModeFigures) -> String {
    let speed = chart(figures, "Samples a second", "over those of sync", |means| Some(means.times_sync));
    let auc = chart(figures, "Test AUC", "less that of sync, by pairs with one seed", |means| means.auc_gap);
    let charts: String = [speed, auc].iter().filter_map(Chart::render_figure).collect();
    let rows: Vec<(&str, Vec<String>)> =
        figures.cases.iter().zip_eq(&figures.means).map(|(case, means)| ("", case.table_cells(means))).collect();
    let goals: String = figures.goal_sentences().iter().map(|goal| format!("<p>{}</p>", escape_html(goal))).collect();
    let body = format!(
        "<h1>Modes of training</h1>\n<p class=\"lead\">{}</p>{goals}\n<div class=\"charts\">{charts}</div>\n<h2>Figures</h2>{}",
        escape_html(&figures.lead_sentence()),
        render_table(&COLUMNS, &rows)
    );
    render_document("Modes of training", &body)
}

/// Hybrid as a curve over τ, the other modes as points.
fn chart(
    figures: &ModeFigures,
    title: &'static str,
    subtitle: &'static str,
    of: fn(&ModeMeans) -> Option<f64>,
) -> Chart {
    let points = |mode: &str| {
        let of_mode = figures.cases.iter().zip_eq(&figures.means).filter(|(case, _)| case.mode == mode);
        of_mode.filter_map(|(case, means)| point(case, of(means))).collect()
    };
    let series = [("hybrid", 0), ("sync", 1), ("async", 2)];
    let series = series.map(|(name, colour)| ChartSeries { name, colour, dots: true, points: points(name) });
    Chart { title, subtitle, across: "staleness τ", series: series.into(), ..Chart::default() }
}

fn point(case: &ModeCase, value: Option<f64>) -> Option<(f64, f64)> {
    Some((case.staleness as f64, value?))
}

#[cfg(test)]
mod tests {
    use super::super::figures::tests::example_figures;
    use super::*;

    #[test]
    fn every_mode_is_drawn_and_listed() {
        let page = page(&example_figures());
        assert_eq!(page.matches("<figure>").count(), 2);
        // Two points of hybrid and one of each other mode, in each chart.
        assert_eq!(page.matches("<circle").count(), 8);
        assert!(
            page.contains("staleness τ</text>") && page.contains("<td>async</td>") && page.contains("goal at 1 ms")
        );
    }
}
