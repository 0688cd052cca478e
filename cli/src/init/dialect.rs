//! How lines are divided into fields.

/// The likelier first.
const SEPARATORS: [char; 4] = ['\t', ',', ';', '|'];

const MOST_LINES: usize = 100;

const COMMENT: char = '#';

/// Share of rows that may have another number of fields.
const MAX_RAGGED: f64 = 0.05;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TextDialect {
    pub separator: char,
    pub fields: usize,
    /// Whether blanks around a field are removed.
    pub trim: bool,
    pub header: bool,
    pub has_comments: bool,
    pub quoted_breaks: bool,
    pub decimal_comma: bool,
    /// Rows of the sample with another number of fields.
    pub ragged: usize,
}

impl TextDialect {
    /// The dialect of Criteo's lines, where another column than theirs is the label.
    pub(crate) fn of_criteo() -> Self {
        Self { separator: '\t', fields: 40, ..Self::default() }
    }
}

#[derive(Debug)]
pub(crate) struct DividedLines {
    pub(crate) dialect: TextDialect,
    pub(crate) names: Vec<String>,
    /// All rows with the right number of fields, without the header.
    pub(crate) rows: Vec<Vec<String>>,
}

impl DividedLines {
    /// An error says why the lines are no table.
    pub(crate) fn from_lines(lines: &[String]) -> Result<Self, String> {
        let starts_with_comment = lines.first().is_some_and(|line| line.starts_with(COMMENT));
        let rows: Vec<&str> = lines
            .iter()
            .map(String::as_str)
            .filter(|line| !(starts_with_comment && line.starts_with(COMMENT)))
            .collect();
        let first = rows.first().copied().unwrap_or_default();
        let records = LineRecords::from_lines(&rows);
        let LineRecords { mut dialect, mut lines } =
            records.ok_or_else(|| no_separator(&first.chars().take(80).collect::<String>()))?;
        let (separator, fields) = (dialect.separator, dialect.fields);
        dialect.has_comments = starts_with_comment;
        if !starts_with_comment && has_comments_between(&lines, separator, fields) {
            dialect.has_comments = true;
            lines.retain(|line| !line.starts_with(COMMENT));
        }
        let mut rows: Vec<Vec<String>> = lines.iter().map(|line| divide(line, separator).0).collect();
        let ragged = rows.iter().filter(|row| row.len() != fields).count();
        if let Some(line) = rows.iter().position(|row| row.len() != fields)
            && ragged as f64 > MAX_RAGGED * rows.len() as f64
        {
            return Err(format!(
                "{ragged} of {} rows do not have {fields} fields; number {} of the rows has {}: the separator {separator:?} is wrong, or the \
                 file is damaged",
                rows.len(),
                line + 1,
                rows[line].len()
            ));
        }
        rows.retain(|row| row.len() == fields);
        let padded = rows.iter().filter(|row| row.iter().any(|field| field.trim() != field)).count();
        dialect.ragged = ragged;
        dialect.trim = padded * 2 > rows.len();
        if dialect.trim {
            rows.iter_mut().flatten().for_each(|field| *field = field.trim().to_owned());
        }
        dialect.header = has_header(&rows);
        let names =
            if dialect.header { rows.remove(0) } else { (1..=fields).map(|column| format!("c{column}")).collect() };
        Ok(Self { dialect, names, rows })
    }
}

fn no_separator(line: &str) -> String {
    format!(
        "no separator divides the lines into columns; tried tab, comma, semicolon and `|`; the first line is {line:?}; write the rows with \
         one of these separators, or as JSON lines, Parquet or Arrow"
    )
}

/// Lines, or records of several lines, with the separator that divides them.
struct LineRecords {
    dialect: TextDialect,
    lines: Vec<String>,
}

impl LineRecords {
    /// The lines as they are, or as records with quoted line breaks where that leaves fewer rows of another number of fields.
    fn from_lines(lines: &[&str]) -> Option<Self> {
        let plain = best_separator(lines).map(|(separator, fields)| Self {
            dialect: TextDialect { separator, fields, ..TextDialect::default() },
            lines: lines.iter().map(|line| (*line).to_owned()).collect(),
        });
        let with_breaks = SEPARATORS.into_iter().filter_map(|separator| {
            let lines = joined(lines, separator)?;
            let (_, fields) = most_fields(&lines, separator)?;
            let dialect = TextDialect { separator, fields, quoted_breaks: true, ..TextDialect::default() };
            (fields >= 2).then_some(Self { dialect, lines })
        });
        plain.into_iter().chain(with_breaks).min_by(|one, other| one.ragged_share().total_cmp(&other.ragged_share()))
    }

    fn ragged_share(&self) -> f64 {
        let TextDialect { separator, fields, .. } = self.dialect;
        let ragged = self.lines.iter().filter(|line| divide(line, separator).0.len() != fields).count();
        ragged as f64 / self.lines.len().max(1) as f64
    }
}

/// Lines in which a quote stays open, together with those up to its end; `None` if there are none.
fn joined(lines: &[&str], separator: char) -> Option<Vec<String>> {
    let (mut records, mut rest, mut is_joined) = (Vec::with_capacity(lines.len()), lines, false);
    while let Some((first, others)) = rest.split_first() {
        let mut record = (*first).to_owned();
        let mut taken = 0;
        while divide(&record, separator).1 && taken < others.len().min(MOST_LINES) {
            record.push('\n');
            record.push_str(others[taken]);
            taken += 1;
        }
        // A quote that is never closed is a letter.
        if divide(&record, separator).1 {
            (record, taken) = ((*first).to_owned(), 0);
        }
        is_joined |= taken > 0;
        records.push(record);
        rest = &others[taken..];
    }
    is_joined.then_some(records)
}

/// Fields of the first line; `None` if it is not whole, or there is none.
pub(crate) fn first_fields(lines: &[String], separator: char) -> Option<usize> {
    let comments = lines.first()?.starts_with(COMMENT);
    let (fields, is_open) = divide(lines.iter().find(|line| !(comments && line.starts_with(COMMENT)))?, separator);
    (!is_open).then_some(fields.len())
}

/// How many lines have the most frequent number of fields, and that number.
fn most_fields(lines: &[impl AsRef<str>], separator: char) -> Option<(usize, usize)> {
    let mut counts: Vec<usize> = lines.iter().map(|line| divide(line.as_ref(), separator).0.len()).collect();
    counts.sort_unstable();
    counts.chunk_by(|a, b| a == b).map(|equal| (equal.len(), equal[0])).max()
}

/// The separator that gives most lines the same number of fields, at least two; of equals, the one with more fields.
fn best_separator(lines: &[&str]) -> Option<(char, usize)> {
    let count = |separator: char| {
        let (lines, fields) = most_fields(lines, separator)?;
        (fields >= 2).then_some((lines, fields, separator))
    };
    let best = SEPARATORS.into_iter().filter_map(count).max_by_key(|&(lines, fields, _)| (lines, fields))?;
    Some((best.2, best.1))
}

/// Whether lines that start with `#` are comments although the first one is not: none of them has the fields of a row.
fn has_comments_between(lines: &[String], separator: char, fields: usize) -> bool {
    let mut marked = lines.iter().filter(|line| line.starts_with(COMMENT)).peekable();
    marked.peek().is_some() && marked.all(|line| divide(line, separator).0.len() != fields)
}

/// Whether the first row names the columns: texts that are all different and no numbers. Either numbers alone are below one of them,
/// and then one name may be empty, as that of an index is; or each is in no other row of its column.
fn has_header(rows: &[Vec<String>]) -> bool {
    let Some((first, others)) = rows.split_first() else { return false };
    let is_name = |(column, name): (usize, &String)| {
        name.parse::<f64>().is_err() && first[..column].iter().all(|other| other != name)
    };
    let names_numbers = |(column, name): (usize, &String)| {
        let mut below = others.iter().map(|row| &row[column]).filter(|field| !field.is_empty()).peekable();
        !name.is_empty() && below.peek().is_some() && below.all(|field| field.parse::<f64>().is_ok())
    };
    let is_no_value =
        |(column, name): (usize, &String)| !name.is_empty() && others.iter().all(|row| row[column] != *name);
    let mut columns = first.iter().enumerate();
    columns.clone().all(is_name) && (columns.clone().any(names_numbers) || columns.all(is_no_value))
}

/// Divides a line. A field that starts with a quote ends at the next single quote (RFC 4180). Says whether a quote stays open.
fn divide(line: &str, separator: char) -> (Vec<String>, bool) {
    if !line.contains('"') {
        return (line.split(separator).map(str::to_owned).collect(), false);
    }
    let (mut fields, mut field, mut is_quoted) = (Vec::new(), String::new(), false);
    let mut letters = line.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '"' if is_quoted && letters.peek() == Some(&'"') => field.extend(letters.next()),
            '"' if is_quoted => is_quoted = false,
            '"' if field.trim().is_empty() => {
                field.clear();
                is_quoted = true;
            }
            other if other == separator && !is_quoted => fields.push(std::mem::take(&mut field)),
            other => field.push(other),
        }
    }
    fields.push(field);
    (fields, is_quoted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn infer(text: &str) -> Result<TextDialect, String> {
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        Ok(DividedLines::from_lines(&lines)?.dialect)
    }

    #[test]
    fn the_separator_is_the_one_that_divides_all_lines_alike() {
        for (text, separator) in [("a,g\n1,x|y\n2,z\n", ','), ("a;g\n1,5;x\n2,5;z\n", ';'), ("1\tx, y\n2\tz\n", '\t')] {
            assert_eq!(infer(text).unwrap().separator, separator, "{text}");
        }
        let blanks = infer("1, f\n2, m\n").unwrap();
        assert_eq!((blanks.trim, blanks.fields), (true, 2));
        assert_eq!(divide(r#"1,"a,""b""",c"#, ',').0, ["1", r#"a,"b""#, "c"]);
    }

    #[test]
    fn comments_are_no_rows_wherever_they_start() {
        assert!(infer("# from a log\n1,f\n#2,m\n3,f\n").unwrap().has_comments);
        let commented = infer("y,a\n1,f\n# a new day\n0,m\n").unwrap();
        assert_eq!((commented.has_comments, commented.ragged), (true, 0));
        assert!(!infer("y,a\n#1,f\n2,m\n").unwrap().has_comments, "`#1` is a value");
    }

    #[test]
    fn numbers_below_a_text_settle_that_it_is_a_name() {
        let rows = |text: &str| -> Vec<Vec<String>> {
            text.lines().map(|line| line.split(',').map(str::to_owned).collect()).collect()
        };
        for (text, expected) in [
            // A value is like a name, and an index has no name.
            ("label,device,os\n1,phone,os\n0,tv,ios\n", true),
            (",y,city\n0,1,Rome\n1,0,Oslo\n", true),
            ("device,os\nphone,ios\ntv,web\n", true),
            ("age,sex\n1,f\n2,m\n", true),
            ("1,phone,os\n0,tv,ios\n", false),
            ("f,u\nf,v\nm,u\n", false),
            ("phone,ios\nphone,web\n", false),
            ("y,y\n1,2\n", false),
            (",os\na,ios\n", false),
        ] {
            assert_eq!(has_header(&rows(text)), expected, "{text}");
        }
    }

    #[test]
    fn quoted_line_breaks_are_found() {
        let text = "y,text,n\n1,\"one\nline, or\ntwo\",5\n0,\"no break\",6\n1,\"a \"\"word\"\"\nmore\",7\n";
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        let DividedLines { dialect, rows, .. } = DividedLines::from_lines(&lines).unwrap();
        assert_eq!((dialect.quoted_breaks, dialect.fields, dialect.ragged, rows.len()), (true, 3, 0, 3));
        assert_eq!(rows[0], ["1", "one\nline, or\ntwo", "5"]);
        // A stray quote opens nothing that is closed.
        let stray = format!("y,a\n{}", "1,\"inch\n0,x\n".to_owned() + &"1,y\n".repeat(40));
        let dialect = infer(&stray).unwrap();
        assert_eq!((dialect.quoted_breaks, dialect.ragged), (false, 0));
    }

    #[test]
    fn ragged_rows_are_named() {
        let error = infer("1,2,3\n1,2\n1,2,3\n").unwrap_err();
        assert!(error.starts_with("1 of 3 rows do not have 3 fields; number 2 of the rows has 2:"), "{error}");
        let error = infer("one\ntwo\n").unwrap_err();
        assert!(error.starts_with("no separator divides") && error.contains("line is \"one\""), "{error}");
    }
}
