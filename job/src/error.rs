//! The problems of a job, all at once. Each has a position, what was expected, and what to do.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use miette::{
    Diagnostic, LabeledSpan, MietteError, MietteSpanContents, NamedSource, SourceCode, SourceSpan, SpanContents,
};

const SHOWN: usize = 10;
/// The longest source, in bytes, whose lines are shown whole. Of a longer line, a window is shown.
const LONG: usize = 4 << 10;
const LONGEST_TEXT: usize = 2_000;
/// Bytes of a long line that are shown: before the problem, and from its start.
const WINDOW: (usize, usize) = (40, 80);

/// Text that settings come from: the job file, one `--set` argument or one environment variable.
#[derive(Debug)]
pub(crate) struct SourceText {
    named: NamedSource<String>,
    /// Whether this is the job file. Relative data paths in the job file start at its folder.
    pub(crate) file: bool,
}

impl SourceText {
    pub(crate) fn job_file(name: &str, text: &str) -> Arc<Self> {
        Arc::new(Self { named: NamedSource::new(name, text.to_owned()), file: true })
    }

    /// An override. `name` says where it comes from.
    pub(crate) fn override_setting(name: &str, text: &str) -> Arc<Self> {
        Arc::new(Self { named: NamedSource::new(name, text.to_owned()), file: false })
    }

    pub(crate) fn text(&self) -> &str {
        self.named.inner()
    }

    /// The part of a long line that is shown: around byte `at`, up to the end of the line.
    fn window(&self, at: usize) -> Range<usize> {
        let text = self.text();
        let line_start = text[..text.floor_char_boundary(at)].rfind('\n').map_or(0, |newline| newline + 1);
        let start = text.floor_char_boundary(at.saturating_sub(WINDOW.0)).max(line_start);
        let end = text.floor_char_boundary(at.saturating_add(WINDOW.1));
        let line_end = text[start..end].find('\n').map_or(end, |newline| start + newline);
        start..line_end.max(start)
    }
}

/// A renderer counts columns in 16 bits and prints whole lines, so it gets only a window of a long line.
impl SourceCode for SourceText {
    fn read_span<'a>(
        &'a self,
        span: &SourceSpan,
        before: usize,
        after: usize,
    ) -> Result<Box<dyn SpanContents<'a> + 'a>, MietteError> {
        let whole = self.named.read_span(span, before, after)?;
        if whole.data().len() <= LONG {
            return Ok(whole);
        }
        let window = self.window(span.offset());
        let (line, column) = line_and_column(self.text(), window.start);
        let (name, data) = (self.named.name().to_owned(), &self.text().as_bytes()[window.clone()]);
        Ok(Box::new(MietteSpanContents::new_named(name, data, window.into(), line, column, 1)))
    }
}

/// Line and column of a byte, from 0, the column in characters.
fn line_and_column(text: &str, at: usize) -> (usize, usize) {
    let prefix = text.get(..at).unwrap_or_default();
    let line_start = prefix.rfind('\n').map_or(0, |newline| newline + 1);
    (prefix.matches('\n').count(), prefix[line_start..].chars().count())
}

#[derive(Clone, Debug)]
pub(crate) struct SourcePlace {
    pub(crate) source: Arc<SourceText>,
    pub(crate) span: Range<usize>,
}

impl SourcePlace {
    /// The text itself; empty if the span is outside the source.
    pub(crate) fn text(&self) -> &str {
        self.source.text().get(self.span.clone()).unwrap_or_default()
    }

    /// Line and column of the start, from 1, the column in characters.
    fn line_and_column(&self) -> (usize, usize) {
        let (line, column) = line_and_column(self.source.text(), self.span.start);
        (line + 1, column + 1)
    }

    fn underlined(&self) -> Range<usize> {
        let window = self.source.window(self.span.start.min(self.source.text().len()));
        if self.span.len() <= WINDOW.1 { self.span.clone() } else { self.span.start..window.end.max(self.span.start) }
    }
}

/// One problem of a job. Shown on one line, or as a [`Diagnostic`] with the line and a caret.
#[derive(Clone, Debug)]
pub struct JobProblem {
    message: String,
    place: Option<SourcePlace>,
    label: String,
    help: Option<String>,
}

impl JobProblem {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: shortened(message.into()), place: None, label: String::new(), help: None }
    }

    /// Points at the text that causes the problem, with a short label beside the caret.
    #[must_use]
    pub(crate) fn at_place(mut self, place: SourcePlace, label: impl Into<String>) -> Self {
        self.place = Some(place);
        self.label = label.into();
        self
    }

    #[must_use]
    pub(crate) fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(shortened(help.into()));
        self
    }

    #[must_use]
    pub(crate) fn maybe_help(mut self, help: Option<String>) -> Self {
        self.help = help.or(self.help);
        self
    }

    pub fn message(&self) -> &str {
        &self.message
    }

    /// Source (a file name or an override), line and column, both from 1.
    pub fn location(&self) -> Option<(&str, usize, usize)> {
        let place = self.place.as_ref()?;
        let (line, column) = place.line_and_column();
        Some((place.source.named.name(), line, column))
    }

    fn plain_text(&self) -> String {
        let place = self.location().map(|(source, line, column)| format!("{source}:{line}:{column}: "));
        let help = self.help.as_ref().map(|help| format!("; {help}"));
        format!("{}{self}{}", place.unwrap_or_default(), help.unwrap_or_default())
    }
}

/// Shortens a text that quotes the user's, which may have any length.
fn shortened(mut text: String) -> String {
    if text.len() > LONGEST_TEXT {
        text.truncate(text.floor_char_boundary(LONGEST_TEXT));
        text.push('…');
    }
    text
}

impl fmt::Display for JobProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for JobProblem {}

impl Diagnostic for JobProblem {
    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        self.help.as_ref().map(|help| Box::new(help) as Box<dyn fmt::Display>)
    }

    fn source_code(&self) -> Option<&dyn SourceCode> {
        self.place.as_ref().map(|place| &*place.source as &dyn SourceCode)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        let place = self.place.as_ref()?;
        let label = LabeledSpan::new_with_span(Some(self.label.clone()), place.underlined());
        Some(Box::new(std::iter::once(label)))
    }
}

/// The problems of a job in the order of the file: at least one, and at most ten, because a person corrects a few and
/// tries again.
///
/// Displayed as a headline, because a renderer of [`Diagnostic`] shows the problems below it.
#[derive(Clone)]
pub struct JobErrors {
    name: String,
    /// How many problems there are, including those that are not shown.
    count: usize,
    problems: Vec<JobProblem>,
}

impl JobErrors {
    /// Sorts the problems by position: overrides first, then down the file.
    pub(crate) fn new(name: impl Into<String>, mut problems: Vec<JobProblem>) -> Self {
        problems.sort_by_key(|problem| match &problem.place {
            Some(place) if place.source.file => (1, place.span.start),
            Some(place) => (0, place.span.start),
            None => (2, 0),
        });
        let count = problems.len();
        problems.truncate(SHOWN);
        Self { name: name.into(), count, problems }
    }

    pub fn problems(&self) -> &[JobProblem] {
        &self.problems
    }

    /// A headline, then `file:line:column: problem; what to do` for each.
    pub fn plain_text(&self) -> String {
        let lines = self.problems.iter().map(JobProblem::plain_text);
        std::iter::once(self.to_string()).chain(lines).collect::<Vec<_>>().join("\n")
    }
}

impl fmt::Display for JobErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, count, problems } = self;
        write!(f, "job file {name} has {count} problem{}", if *count == 1 { "" } else { "s" })?;
        if *count > problems.len() { write!(f, "; the first {} are", problems.len()) } else { Ok(()) }
    }
}

impl fmt::Debug for JobErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.plain_text())
    }
}

impl std::error::Error for JobErrors {}

impl Diagnostic for JobErrors {
    fn related<'a>(&'a self) -> Option<Box<dyn Iterator<Item = &'a dyn Diagnostic> + 'a>> {
        Some(Box::new(self.problems.iter().map(|problem| problem as &dyn Diagnostic)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(text: &str, span: Range<usize>) -> JobProblem {
        JobProblem::new("wrong").at_place(SourcePlace { source: SourceText::job_file("job.toml", text), span }, "here")
    }

    #[test]
    fn columns_count_characters_not_bytes() {
        let text = "a = 1\nä = \"β\" # γ\n";
        assert_eq!(problem(text, 0..1).location(), Some(("job.toml", 1, 1)));
        assert_eq!(problem(text, text.find('"').unwrap()..text.len()).location(), Some(("job.toml", 2, 5)));
    }

    #[test]
    fn a_span_outside_the_text_does_not_panic() {
        let problem = problem("a", 7..9);
        assert_eq!(problem.location(), Some(("job.toml", 1, 1)));
        assert_eq!(problem.place.unwrap().text(), "");
    }

    #[test]
    fn problems_come_in_the_order_of_the_file_after_those_of_overrides() {
        let setting = SourcePlace { source: SourceText::override_setting("--set", "x=1"), span: 2..3 };
        let problems = vec![
            JobProblem::new("nowhere"),
            problem("a\nb", 2..3),
            problem("a\nb", 0..1),
            JobProblem::new("set").at_place(setting, "").help("unset it"),
        ];
        let expected =
            "job file j has 4 problems\n--set:1:3: set; unset it\njob.toml:1:1: wrong\njob.toml:2:1: wrong\nnowhere";
        assert_eq!(JobErrors::new("j", problems).plain_text(), expected);
    }
}
