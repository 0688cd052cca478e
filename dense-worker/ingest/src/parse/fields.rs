//! A line divided into fields.
//!
//! Quoting follows RFC 4180: a field that starts with `"` ends at the next single `"`, and `""` inside stands for one. A
//! quoted line break is part of the field where the job says that there are some (`data.quoted_breaks`); elsewhere lines are
//! divided first, and the row is refused, not misread. Quotes inside an unquoted field are ordinary characters.

/// Fields of the newest line. The memory is used again for each line.
#[derive(Clone, Debug, Default)]
pub(crate) struct LineFields {
    /// Where each field is: in the line, or in `unquoted` if it had quotes.
    bounds: Vec<(u32, u32)>,
    unquoted: Vec<u8>,
    from_unquoted: bool,
    /// Where numbers have a decimal comma, the same bytes with points in place of commas.
    pointed: Option<Vec<u8>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FieldSyntax {
    pub(crate) delimiter: u8,
    pub(crate) quotes: bool,
    /// Whether blanks (spaces and tabs) around a field are removed.
    pub(crate) trim: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QuoteError {
    /// The closing quote of this field (from 0) is missing.
    Unclosed(usize),
    /// Something other than a delimiter follows the closing quote of this field (from 0).
    TextAfterQuote(usize),
}

impl LineFields {
    pub(crate) fn new(has_decimal_comma: bool) -> Self {
        Self { pointed: has_decimal_comma.then(Vec::new), ..Self::default() }
    }

    /// Divides a line, which is given without its line end.
    #[inline]
    pub(crate) fn tokenize(&mut self, line: &[u8], syntax: FieldSyntax) -> Result<(), QuoteError> {
        self.bounds.clear();
        self.from_unquoted = syntax.quotes && memchr::memchr(b'"', line).is_some();
        if self.from_unquoted {
            self.cut_quoted(line, syntax)?;
        } else {
            let mut start = 0;
            for end in memchr::memchr_iter(syntax.delimiter, line) {
                self.push(line, start, end, syntax.trim);
                start = end + 1;
            }
            self.push(line, start, line.len(), syntax.trim);
        }
        if let Some(pointed) = &mut self.pointed {
            let text = if self.from_unquoted { &self.unquoted } else { line };
            pointed.clear();
            pointed.extend(text.iter().map(|byte| if *byte == b',' { b'.' } else { *byte }));
        }
        Ok(())
    }

    /// A field of the newest line that holds a number, or several: with a point in place of a decimal comma.
    #[inline]
    fn number<'a>(&'a self, line: &'a [u8], field: usize) -> &'a [u8] {
        let Some(pointed) = &self.pointed else { return self.get(line, field) };
        let (start, end) = self.bounds[field];
        &pointed[start as usize..end as usize]
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.bounds.len()
    }

    #[inline]
    pub(crate) fn get<'a>(&'a self, line: &'a [u8], field: usize) -> &'a [u8] {
        let (start, end) = self.bounds[field];
        let text = if self.from_unquoted { &self.unquoted } else { line };
        &text[start as usize..end as usize]
    }

    #[inline]
    pub(crate) fn cell<'a>(&'a self, line: &'a [u8], field: usize, is_number: bool) -> &'a [u8] {
        if is_number { self.number(line, field) } else { self.get(line, field) }
    }

    #[inline]
    fn push(&mut self, line: &[u8], start: usize, end: usize, trim: bool) {
        let (start, end) = if trim { trimmed(line, start, end) } else { (start, end) };
        self.bounds.push((start as u32, end as u32));
    }

    fn cut_quoted(&mut self, line: &[u8], syntax: FieldSyntax) -> Result<(), QuoteError> {
        self.unquoted.clear();
        let mut rest = line;
        loop {
            let start = self.unquoted.len() as u32;
            let body = if syntax.trim { trim_start(rest, syntax.delimiter) } else { rest };
            let remainder = match body {
                [b'"', quoted @ ..] => self.take_quoted(quoted, syntax)?,
                bare => self.take_bare(bare, syntax),
            };
            self.bounds.push((start, self.unquoted.len() as u32));
            match remainder {
                Some(next) => rest = next,
                None => return Ok(()),
            }
        }
    }

    /// Copies up to the closing quote. Returns the text after the following delimiter.
    fn take_quoted<'a>(&mut self, mut text: &'a [u8], syntax: FieldSyntax) -> Result<Option<&'a [u8]>, QuoteError> {
        let field = self.bounds.len();
        loop {
            let quote = memchr::memchr(b'"', text).ok_or(QuoteError::Unclosed(field))?;
            self.unquoted.extend_from_slice(&text[..quote]);
            text = &text[quote + 1..];
            match text {
                [b'"', more @ ..] => {
                    self.unquoted.push(b'"');
                    text = more;
                }
                _ => break,
            }
        }
        let text = if syntax.trim { trim_start(text, syntax.delimiter) } else { text };
        match text {
            [] => Ok(None),
            [first, next @ ..] if *first == syntax.delimiter => Ok(Some(next)),
            _ => Err(QuoteError::TextAfterQuote(field)),
        }
    }

    /// Copies up to the delimiter. Returns the text after it.
    fn take_bare<'a>(&mut self, text: &'a [u8], syntax: FieldSyntax) -> Option<&'a [u8]> {
        let end = memchr::memchr(syntax.delimiter, text);
        let field = &text[..end.unwrap_or(text.len())];
        let (start, stop) = if syntax.trim { trimmed(field, 0, field.len()) } else { (0, field.len()) };
        self.unquoted.extend_from_slice(&field[start..stop]);
        end.map(|end| &text[end + 1..])
    }
}

/// The part of `text[start..end]` between blanks.
#[inline]
pub(crate) fn trimmed(text: &[u8], mut start: usize, mut end: usize) -> (usize, usize) {
    while start < end && is_blank(text[start]) {
        start += 1;
    }
    while start < end && is_blank(text[end - 1]) {
        end -= 1;
    }
    (start, end)
}

fn trim_start(text: &[u8], delimiter: u8) -> &[u8] {
    let blanks = text.iter().take_while(|byte| is_blank(**byte) && **byte != delimiter).count();
    &text[blanks..]
}

fn is_blank(byte: u8) -> bool {
    byte == b' ' || byte == b'\t'
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fixture::by_csv_core;

    const CSV: FieldSyntax = FieldSyntax { delimiter: b',', quotes: true, trim: false };

    fn tokenize(line: &str, syntax: FieldSyntax) -> Result<Vec<String>, QuoteError> {
        let mut fields = LineFields::default();
        fields.tokenize(line.as_bytes(), syntax)?;
        let text = |field| String::from_utf8(fields.get(line.as_bytes(), field).to_vec()).unwrap();
        Ok((0..fields.len()).map(text).collect())
    }

    #[test]
    fn lines_are_divided_by_their_syntax() {
        let tabs = FieldSyntax { delimiter: b'\t', quotes: false, trim: false };
        let trimmed = FieldSyntax { trim: true, ..CSV };
        for (line, syntax, expected) in [
            ("", CSV, &[""][..]),
            (",a,", CSV, &["", "a", ""]),
            ("\"\",\"\"", CSV, &["", ""]),
            (r#"a,"b,c","say ""hi""",d"e"#, CSV, &["a", "b,c", r#"say "hi""#, r#"d"e"#]),
            ("\"a\t\"b\"", tabs, &["\"a", "\"b\""]),
            (" a , b c ,\" d \" ,", trimmed, &["a", "b c", " d ", ""]),
            ("39, State-gov, <=50K", trimmed, &["39", "State-gov", "<=50K"]),
        ] {
            assert_eq!(tokenize(line, syntax).unwrap(), expected, "{line}");
        }
        assert_eq!(tokenize(r#"a,"b,c"#, CSV), Err(QuoteError::Unclosed(1)));
        assert_eq!(tokenize(r#"a,"b"c,d"#, CSV), Err(QuoteError::TextAfterQuote(1)));
    }

    proptest! {
        #[test]
        fn quoted_fields_are_read_back(fields in prop::collection::vec("[a-c\", ]{0,6}", 1..6), trim: bool) {
            let line = fields.iter().map(|field| format!("\"{}\"", field.replace('"', "\"\""))).collect::<Vec<_>>();
            prop_assert_eq!(tokenize(&line.join(","), FieldSyntax { trim, ..CSV }).unwrap(), fields);
        }

        #[test]
        fn well_formed_lines_are_divided_as_by_csv_core(line in "([a-c ]{0,3}|\"([a-c,]|\"\"){0,4}\")(,([a-c ]{0,3}|\"([a-c,]|\"\"){0,4}\")){0,4}") {
            prop_assume!(!line.is_empty());
            let found: Vec<Vec<u8>> = tokenize(&line, CSV).unwrap().into_iter().map(String::into_bytes).collect();
            prop_assert_eq!(vec![found], by_csv_core(line.as_bytes()));
        }
    }
}
