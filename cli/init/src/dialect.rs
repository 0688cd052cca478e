//! How lines are divided into fields.

use crate::InitError;

/// Separators that are tried, the likelier first.
const SEPARATORS: [char; 4] = ['\t', ',', ';', '|'];

/// What a comment starts with.
const COMMENT: char = '#';

/// Share of rows that may have another number of fields.
const MAX_RAGGED: f64 = 0.05;

/// How lines are divided into fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dialect {
    /// The text between two fields.
    pub separator: char,
    /// Fields of a row.
    pub fields: usize,
    /// Whether blanks around a field are removed.
    pub trim: bool,
    /// Whether the first line names the columns.
    pub header: bool,
    /// Whether lines that start with `#` are comments.
    pub has_comments: bool,
    /// Rows of the sample with another number of fields.
    pub ragged: usize,
}

impl Dialect {
    /// The dialect of Criteo's lines, where another column than theirs is the label.
    pub(crate) fn of_criteo() -> Self {
        Self { separator: '\t', fields: 40, trim: false, header: false, has_comments: false, ragged: 0 }
    }
}

/// Lines divided into fields.
#[derive(Debug)]
pub(crate) struct Divided {
    pub(crate) dialect: Dialect,
    /// Names of the columns.
    pub(crate) names: Vec<String>,
    /// All rows with the right number of fields, without the header.
    pub(crate) rows: Vec<Vec<String>>,
}

impl Divided {
    /// Infers the dialect of lines, and divides them.
    pub(crate) fn of(lines: &[String]) -> Result<Self, InitError> {
        let starts_with_comment = lines.first().is_some_and(|line| line.starts_with(COMMENT));
        let rows: Vec<&str> = lines
            .iter()
            .map(String::as_str)
            .filter(|line| !(starts_with_comment && line.starts_with(COMMENT)))
            .collect();
        let first = rows.first().copied().unwrap_or_default();
        let (separator, fields) =
            best_separator(&rows).ok_or_else(|| InitError::NoSeparator { line: first.chars().take(80).collect() })?;
        let mut has_comments = starts_with_comment;
        let mut lines = rows;
        if !has_comments && has_comments_between(&lines, separator, fields) {
            has_comments = true;
            lines.retain(|line| !line.starts_with(COMMENT));
        }
        let mut rows: Vec<Vec<String>> = lines.iter().map(|line| divide(line, separator)).collect();
        let ragged = rows.iter().filter(|row| row.len() != fields).count();
        if let Some(line) = rows.iter().position(|row| row.len() != fields)
            && ragged as f64 > MAX_RAGGED * rows.len() as f64
        {
            let found = rows[line].len();
            return Err(InitError::Ragged { bad: ragged, rows: rows.len(), fields, line: line + 1, found, separator });
        }
        rows.retain(|row| row.len() == fields);
        let padded = rows.iter().filter(|row| row.iter().any(|field| field.trim() != field)).count();
        let trim = padded * 2 > rows.len();
        if trim {
            rows.iter_mut().flatten().for_each(|field| *field = field.trim().to_owned());
        }
        let header = has_header(&rows);
        let names = if header { rows.remove(0) } else { (1..=fields).map(|column| format!("c{column}")).collect() };
        let dialect = Dialect { separator, fields, trim, header, has_comments, ragged };
        Ok(Self { dialect, names, rows })
    }
}

/// The separator that gives most lines the same number of fields, at least two; of equals, the one with more fields.
fn best_separator(lines: &[&str]) -> Option<(char, usize)> {
    let of = |separator: char| {
        let mut counts: Vec<usize> = lines.iter().map(|line| divide(line, separator).len()).collect();
        counts.sort_unstable();
        let (lines, fields) = counts.chunk_by(|a, b| a == b).map(|equal| (equal.len(), equal[0])).max()?;
        (fields >= 2).then_some((lines, fields, separator))
    };
    let best = SEPARATORS.into_iter().filter_map(of).max_by_key(|&(lines, fields, _)| (lines, fields))?;
    Some((best.2, best.1))
}

/// Whether lines that start with `#` are comments although the first one is not: none of them has the fields of a row.
fn has_comments_between(lines: &[&str], separator: char, fields: usize) -> bool {
    let mut marked = lines.iter().filter(|line| line.starts_with(COMMENT)).peekable();
    marked.peek().is_some() && marked.all(|line| divide(line, separator).len() != fields)
}

/// Whether the first row names the columns: texts that are all different, no numbers, and in no other row of their column.
fn has_header(rows: &[Vec<String>]) -> bool {
    let Some((first, others)) = rows.split_first() else { return false };
    first.iter().enumerate().all(|(column, name)| {
        !name.is_empty()
            && name.parse::<f64>().is_err()
            && first[..column].iter().all(|other| other != name)
            && others.iter().all(|row| row[column] != *name)
    })
}

/// Divides a line. A field that starts with a quote ends at the next single quote (RFC 4180).
fn divide(line: &str, separator: char) -> Vec<String> {
    if !line.contains('"') {
        return line.split(separator).map(str::to_owned).collect();
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
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    fn infer(text: &str) -> Result<Dialect, InitError> {
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        Ok(Divided::of(&lines)?.dialect)
    }

    #[test]
    fn the_separator_is_the_one_that_divides_all_lines_alike() {
        assert_eq!(infer("a,g\n1,x|y\n2,z\n").unwrap().separator, ',');
        assert_eq!(infer("a;g\n1,5;x\n2,5;z\n").unwrap().separator, ';');
        assert_eq!(infer("1\tx, y\n2\tz\n").unwrap().separator, '\t');
    }

    #[test]
    fn a_first_line_of_values_is_no_header() {
        assert!(infer("age,sex\n1,f\n2,m\n").unwrap().header);
        assert!(!infer("1,f\n2,m\n").unwrap().header);
        assert!(!infer("f,u\nf,v\nm,u\n").unwrap().header, "`f` is a value");
    }

    #[test]
    fn blanks_after_the_separator_are_trimmed() {
        let dialect = infer("1, f\n2, m\n").unwrap();
        assert!(dialect.trim);
        assert_eq!(dialect.fields, 2);
    }

    #[test]
    fn comments_are_no_rows_wherever_they_start() {
        assert!(infer("# from a log\n1,f\n#2,m\n3,f\n").unwrap().has_comments);
        let between = infer("y,a\n1,f\n# a new day\n0,m\n").unwrap();
        assert_eq!((between.has_comments, between.ragged), (true, 0));
        assert!(!infer("y,a\n#1,f\n2,m\n").unwrap().has_comments, "`#1` is a value");
    }

    #[test]
    fn quoted_separators_divide_nothing() {
        assert_eq!(divide(r#"1,"a,""b""",c"#, ','), ["1", r#"a,"b""#, "c"]);
    }

    #[test]
    fn ragged_rows_are_named() {
        let error = infer("1,2,3\n1,2\n1,2,3\n").unwrap_err();
        assert!(matches!(error, InitError::Ragged { bad: 1, line: 2, found: 2, fields: 3, .. }), "{error}");
        assert!(matches!(infer("one\ntwo\n"), Err(InitError::NoSeparator { .. })));
    }
}
