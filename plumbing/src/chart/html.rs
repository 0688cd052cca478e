//! The frame of the page: style sheet, escaping, tables.

/// Colours by role, light and dark; text in units of the reader's own font size.
const STYLE: &str = r#"
:root { color-scheme: light dark; --page: #f7f7f5; --card: #fff; --ink: #1a1a19; --soft: #5c5b57; --rule: #e3e2dd;
  --c0: #2a78d6; --c1: #c2410c; --c2: #15803d; --c3: #7c3aed; --c4: #b45309; --c5: #0e7490; --c6: #be185d; --c7: #4d7c0f; }
@media (prefers-color-scheme: dark) { :root { --page: #131312; --card: #1d1d1b; --ink: #efeee9; --soft: #a3a29b;
  --rule: #33322f; --c0: #5b9cf0; --c1: #f08c4f; --c2: #4cc27a; --c3: #b18cf5;
  --c4: #e0b04f; --c5: #4fc3dd; --c6: #f08ab8; --c7: #a9cf5b; } }
* { box-sizing: border-box; }
body { margin: 0; padding: 1.5rem 1rem 3rem; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 1040px; margin: 0 auto; }
h1 { font-size: 1.5rem; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 2.2rem 0 .7rem; }
h3 { font-size: .95rem; margin: 0; }
p { margin: .2rem 0; } .lead { color: var(--soft); }
.note { margin: 1rem 0 0; padding: .7rem .9rem; background: var(--card); border-left: 3px solid var(--c0); border-radius: 6px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(8.5rem, 1fr)); gap: .7rem; margin-top: 1.2rem; }
.tiles div, figure, .card { background: var(--card); border: 1px solid var(--rule); border-radius: 8px; }
.tiles div { padding: .6rem .8rem; } .tiles b { display: block; font-size: 1.25rem; font-variant-numeric: tabular-nums; }
.tiles span { color: var(--soft); font-size: .82rem; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 340px), 1fr)); gap: .9rem; }
figure { margin: 0; padding: .8rem .8rem .4rem; min-width: 0; }
figcaption p, .legend { color: var(--soft); font-size: .82rem; }
svg { width: 100%; height: auto; display: block; } svg text { font-size: 11px; fill: var(--soft); }
.grid { stroke: var(--rule); } .axis { stroke: var(--soft); } .mark { stroke: var(--soft); stroke-dasharray: 3 3; }
.why { font-weight: 600; } .curve { fill: none; stroke-width: 1.6; stroke-linejoin: round; }
polyline.c0 { stroke: var(--c0); } polyline.c1 { stroke: var(--c1); } polyline.c2 { stroke: var(--c2); } polyline.c3 { stroke: var(--c3); }
polyline.c4 { stroke: var(--c4); } polyline.c5 { stroke: var(--c5); } polyline.c6 { stroke: var(--c6); } polyline.c7 { stroke: var(--c7); }
circle.c0 { fill: var(--c0); } circle.c1 { fill: var(--c1); } circle.c2 { fill: var(--c2); } circle.c3 { fill: var(--c3); }
circle.c4 { fill: var(--c4); } circle.c5 { fill: var(--c5); } circle.c6 { fill: var(--c6); } circle.c7 { fill: var(--c7); }
circle { stroke: var(--card); stroke-width: 1.5; }
.legend span { margin-right: 1rem; white-space: nowrap; } .legend i { display: inline-block; margin-right: .4em; vertical-align: middle; }
i.line { width: 1.1em; height: 3px; border-radius: 2px; } i.dot { width: .65em; height: .65em; border-radius: 50%; }
i.c0 { background: var(--c0); } i.c1 { background: var(--c1); } i.c2 { background: var(--c2); } i.c3 { background: var(--c3); }
i.c4 { background: var(--c4); } i.c5 { background: var(--c5); } i.c6 { background: var(--c6); } i.c7 { background: var(--c7); }
.card { padding: .4rem .8rem; overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .9rem .35rem 0; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--rule); }
tr:last-child td { border-bottom: 0; } th { color: var(--soft); font-weight: 500; font-size: .82rem; }
th:first-child, td:first-child { text-align: left; } tr.best td { font-weight: 600; }
td.bar { width: 45%; min-width: 6rem; padding-right: 0; } td.bar i { display: block; height: .7em; border-radius: 0 4px 4px 0; background: var(--c0); min-width: 1px; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1.2rem; margin: .4rem 0; } dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
details { padding: .3rem 0; } summary { cursor: pointer; } pre { overflow-x: auto; font-size: .82rem; line-height: 1.45; }
a { color: var(--c0); }
"#;

pub fn escape_html(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            c => safe.push(c),
        }
    }
    safe
}

/// The whole document. A browser loads nothing besides it.
pub fn render_document(title: &str, body: &str) -> String {
    let title = escape_html(title);
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body><main>\n{body}\n</main></body>\n</html>\n"
    )
}

/// What stands for a value that there is none of.
pub const NOTHING: &str = "–";
/// Rows up to which a table is shown whole, and those that are shown at once of a longer one.
const WHOLE: usize = 30;
const SHOWN: usize = 10;

/// A table whose best row stands out. A long one shows its first rows, or its last ones if it `shows_end`, and all rows once a reader opens
/// it. It skips columns without a value.
pub fn render_table(head: &[String], rows: &[Vec<String>], best: Option<usize>, shows_end: bool) -> String {
    let has_value = |column: &usize| rows.iter().any(|cells| cells.get(*column).is_some_and(|cell| cell != NOTHING));
    let columns: Vec<usize> = (0..head.len()).filter(has_value).collect();
    let cells = |row: &[String], tag: &str| {
        let cells = columns.iter().filter_map(|column| row.get(*column));
        cells.map(|cell| format!("<{tag}>{}</{tag}>", escape_html(cell))).collect::<String>()
    };
    let table = |is_shown: &dyn Fn(usize) -> bool| {
        let line = |(place, row): (usize, &Vec<String>)| {
            let class = if best == Some(place) { "best" } else { "" };
            format!("<tr class=\"{class}\">{}</tr>\n", cells(row, "td"))
        };
        let lines: String = rows.iter().enumerate().filter(|(place, _)| is_shown(*place)).map(line).collect();
        format!("<div class=\"card\"><table><tr>{}</tr>\n{lines}</table></div>", cells(head, "th"))
    };
    let whole = table(&|_| true);
    if rows.len() <= WHOLE {
        return whole;
    }
    let first = if shows_end { rows.len() - SHOWN } else { 0 };
    let part = table(&|place| (first..first + SHOWN).contains(&place) || best == Some(place));
    format!("{part}<details><summary>all {} rows</summary>{whole}</details>", rows.len())
}

/// Names and what they stand for, both text.
pub fn render_facts(facts: &[(String, String)]) -> String {
    let fact =
        |(name, text): &(String, String)| format!("<dt>{}</dt><dd>{}</dd>", escape_html(name), escape_html(text));
    format!("<div class=\"card\"><dl>{}</dl></div>", facts.iter().map(fact).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_stays_text() {
        assert_eq!(escape_html("<a href=\"x\">'&'</a>"), "&lt;a href=&quot;x&quot;&gt;&#39;&amp;&#39;&lt;/a&gt;");
        let [head, cell, name, value] = ["<h>", "<td>", "<n>", "<v>"].map(str::to_owned);
        let table = render_table(&[head], &[vec![cell]], Some(0), false);
        assert!(table.contains("<th>&lt;h&gt;</th>") && table.contains("<td>&lt;td&gt;</td>"), "{table}");
        assert!(render_facts(&[(name, value)]).contains("<dt>&lt;n&gt;</dt><dd>&lt;v&gt;</dd>"));
    }

    #[test]
    fn a_document_needs_nothing_from_elsewhere() {
        let page = render_document("a <run>", "body");
        assert!(page.starts_with("<!doctype html>") && page.contains("<title>a &lt;run&gt;</title>"));
        for source in ["http://", "https://", "<script", "@import", "url(", "src="] {
            assert!(!page.replace("default-src", "").replace("style-src", "").contains(source), "{source}");
        }
    }

    #[test]
    fn light_and_dark_name_the_same_colours() {
        let (light, dark) = STYLE.split_once("@media").unwrap();
        let names = |text: &str| {
            let names = text.split(':').filter_map(|part| part.rsplit_once("--").map(|(_, name)| name.to_owned()));
            names.filter(|name| name.chars().all(char::is_alphanumeric)).collect::<std::collections::BTreeSet<_>>()
        };
        let dark = dark.split("} }").next().unwrap();
        assert_eq!(names(light.split('}').next().unwrap()), names(dark));
    }

    #[test]
    fn a_long_table_shows_an_end_and_columns_without_a_value_are_skipped() {
        let row = |number: usize| vec![number.to_string(), NOTHING.to_owned(), "0.5".to_owned()];
        let rows: Vec<_> = (0..60).map(row).collect();
        let head = ["epoch", "GAUC", "AUC"].map(str::to_owned);
        let text = render_table(&head, &rows, Some(7), true);
        assert!(!text.contains("GAUC") && !text.contains(NOTHING), "{text}");
        let (shown, hidden) = text.split_once("<details><summary>all 60 rows</summary>").unwrap();
        // The head, the last ten, and the one that stands out.
        assert_eq!((shown.matches("<tr").count(), hidden.matches("<tr").count()), (12, 61), "{text}");
        assert!(shown.contains("<td>59</td>") && shown.contains("class=\"best\"") && !shown.contains("<td>49</td>"));
        let start = render_table(&head, &rows, None, false);
        let shown = start.split("<details>").next().unwrap();
        assert!(shown.contains("<td>0</td>") && shown.contains("<td>9</td>") && !shown.contains("<td>10</td>"));
        assert!(!render_table(&head, &rows[..30], None, false).contains("<details>"));
    }
}
