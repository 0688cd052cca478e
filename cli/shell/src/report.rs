//! What a command found, in parts under titles: lines for a terminal, and one page that opens offline.

use owo_colors::OwoColorize;
use zagros_plumbing::chart::html::{escape_html, render_document, render_facts, render_table};
use zagros_zip::ZipEq;

use crate::out;

#[derive(Clone, Debug, Default)]
pub struct CommandReport {
    parts: Vec<ReportPart>,
}

#[derive(Clone, Debug)]
enum ReportPart {
    /// Of the parts up to the next title. It is not shown where there are none.
    Title(String),
    Lead(String),
    Note(String),
    Facts(Vec<(String, String)>),
    Table(ReportTable),
    Html(String),
}

/// Rows of texts, as many in each as the head has.
#[derive(Clone, Debug, Default)]
pub struct ReportTable {
    pub head: Vec<String>,
    pub rows: Vec<Vec<String>>,
    /// The row that stands out on the page.
    pub best: Option<usize>,
    /// Whether a page shows the last rows of a long table, not the first ones.
    pub shows_end: bool,
}

impl CommandReport {
    pub fn add_title(&mut self, text: &str) -> &mut Self {
        self.add(ReportPart::Title(text.to_owned()))
    }

    pub fn add_lead(&mut self, text: &str) -> &mut Self {
        self.add(ReportPart::Lead(text.to_owned()))
    }

    pub fn add_note(&mut self, text: &str) -> &mut Self {
        self.add(ReportPart::Note(text.to_owned()))
    }

    pub fn add_facts(&mut self, facts: Vec<(&str, String)>) -> &mut Self {
        self.add(ReportPart::Facts(facts.into_iter().map(|(name, text)| (name.to_owned(), text)).collect()))
    }

    /// Nothing for a table without rows.
    pub fn add_table(&mut self, table: ReportTable) -> &mut Self {
        if table.rows.is_empty() { self } else { self.add(ReportPart::Table(table)) }
    }

    /// What has no points has no figure.
    pub fn add_figures(&mut self, figures: impl IntoIterator<Item = Option<String>>) -> &mut Self {
        let figures: String = figures.into_iter().flatten().collect();
        if figures.is_empty() { self } else { self.add_html(format!("<div class=\"charts\">{figures}</div>")) }
    }

    /// Nothing for an empty text.
    pub fn add_html(&mut self, html: String) -> &mut Self {
        if html.is_empty() { self } else { self.add(ReportPart::Html(html)) }
    }

    fn add(&mut self, part: ReportPart) -> &mut Self {
        self.parts.push(part);
        self
    }

    /// Each part, with its title if it is the first under it.
    fn titled_parts(&self) -> impl Iterator<Item = (Option<&String>, &ReportPart)> {
        let mut title = None;
        self.parts.iter().filter_map(move |part| match part {
            ReportPart::Title(text) => {
                title = Some(text);
                None
            }
            part => Some((title.take(), part)),
        })
    }

    pub fn render_page(&self, heading: &str) -> String {
        let mut body = format!("<h1>{}</h1>\n", escape_html(heading));
        for (title, part) in self.titled_parts() {
            if let Some(title) = title {
                body += &format!("<h2>{}</h2>\n", escape_html(title));
            }
            body += &match part {
                ReportPart::Title(text) | ReportPart::Lead(text) => {
                    format!("<p class=\"lead\">{}</p>", escape_html(text))
                }
                ReportPart::Note(text) => format!("<p class=\"note\">{}</p>", escape_html(text)),
                ReportPart::Facts(facts) => render_facts(facts),
                ReportPart::Table(ReportTable { head, rows, best, shows_end }) => {
                    render_table(head, rows, *best, *shows_end)
                }
                ReportPart::Html(html) => html.clone(),
            };
            body.push('\n');
        }
        render_document(&format!("{heading} · Zagros"), &body)
    }

    pub fn print(&self) {
        for (title, part) in self.titled_parts().filter(|(_, part)| !matches!(part, ReportPart::Html(_))) {
            if let Some(title) = title {
                out!("\n{}", title.bold());
            }
            match part {
                ReportPart::Title(text) | ReportPart::Lead(text) | ReportPart::Note(text) => out!("{text}"),
                ReportPart::Facts(facts) => facts.iter().for_each(|(name, text)| out!("  {:<22}{text}", name.dimmed())),
                ReportPart::Table(table) => table.print(),
                ReportPart::Html(_) => {}
            }
        }
    }
}

impl ReportTable {
    pub fn new(head: &[&str], rows: Vec<Vec<String>>) -> Self {
        Self { head: head.iter().map(|&name| name.to_owned()).collect(), rows, ..Self::default() }
    }

    pub fn print(&self) {
        let lines = self.render_lines();
        let (head, rows) = lines.split_at(1);
        head.iter().filter(|line| !line.is_empty()).for_each(|line| out!("{}", line.dimmed()));
        rows.iter().for_each(|line| out!("{line}"));
    }

    /// The head, and the rows below it. Columns of numbers are aligned right.
    fn render_lines(&self) -> Vec<String> {
        let all = || std::iter::once(&self.head).chain(&self.rows);
        let column = |number: usize| {
            let width = all().filter_map(|row| row.get(number)).map(|cell| cell.chars().count()).max().unwrap_or(0);
            (width, self.rows.iter().filter_map(|row| row.get(number)).all(|cell| is_number(cell)))
        };
        let columns: Vec<(usize, bool)> = (0..self.head.len()).map(column).collect();
        let line = |row: &Vec<String>| {
            let cells = row.iter().zip_eq(&columns).map(|(cell, (width, is_number))| match is_number {
                true => format!("{cell:>width$}"),
                false => format!("{cell:<width$}"),
            });
            format!("  {}", cells.collect::<Vec<_>>().join("  ")).trim_end().to_owned()
        };
        all().map(line).collect()
    }
}

/// Whether a cell is a number with its unit, or says that there is none.
fn is_number(cell: &str) -> bool {
    let starts = |letter: char| letter.is_ascii_digit() || ['-', '+', '–', '×'].contains(&letter);
    cell.is_empty() || cell == "undefined" || cell.starts_with(starts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> ReportTable {
        let row = |cells: [&str; 3]| cells.map(str::to_owned).to_vec();
        ReportTable::new(&["trial", "kind", "AUC"], vec![row(["7", "<sgd>", "0.75"]), row(["12", "adam", "–"])])
    }

    #[test]
    fn numbers_are_aligned_right_and_words_left() {
        assert_eq!(table().render_lines(), ["  trial  kind    AUC", "      7  <sgd>  0.75", "     12  adam      –"]);
    }

    #[test]
    fn a_title_comes_with_what_is_under_it_and_a_page_has_text_as_text() {
        let mut report = CommandReport::default();
        report.add_title("Nothing").add_table(ReportTable::default()).add_figures([None]);
        report
            .add_title("Trials")
            .add_table(ReportTable { best: Some(1), ..table() })
            .add_facts(vec![("a <b>", "c".into())]);
        let page = report.add_note("<i>").render_page("a & b");
        assert!(page.contains("<h1>a &amp; b</h1>") && page.contains("<title>a &amp; b · Zagros</title>"), "{page}");
        assert!(page.contains("<h2>Trials</h2>") && !page.contains("Nothing"), "{page}");
        assert!(page.contains("<td>&lt;sgd&gt;</td>") && page.contains("<dt>a &lt;b&gt;</dt><dd>c</dd>"), "{page}");
        assert!(
            page.contains("<tr class=\"best\"><td>12</td>") && page.contains("<p class=\"note\">&lt;i&gt;</p>"),
            "{page}"
        );
    }
}
