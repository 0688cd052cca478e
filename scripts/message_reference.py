"""The reference page of messages, read from the sources: every `#[error("…")]` with the comment above it.

scripts/docs_site.py writes the page when it builds the site, so the page is never older than the program.
"""

import pathlib
import re

INTRODUCTION = """# Messages

Every error message says what failed, where, why, and what to do next. The exit code says of which kind the error is
([exit codes](exit-codes.md)). A mistake in a job file is shown with its line, its column and the nearest valid key. Warnings of a run
that is under way are on the [live page](live-page.md) and in [Troubleshooting](troubleshooting.md).

This page lists the messages of each part of the program, read from the source. Words in *italics* stand for what the message names: a
file, an address, a number.
"""
# The parts of the program in the order of the page, with the folders that their messages are in.
PARTS = [
    ("Data", "dense-worker/ingest/src"),
    ("Training", "dense-worker/src dense-worker/model/src"),
    ("Modules, devices and groups by libtorch", "dense-worker/torch/src dense-worker/collective/src"),
    ("Joining a run", "coordinator/client/src"),
    ("Rows: requests between worker and server", "embedding-server/client/src embedding-server/src table/src"),
    ("Rows in files", "embedding-server/rows/src dense-worker/scoring/src"),
    ("Folders and object stores", "plumbing/store/src plumbing/src"),
    ("Messages between processes", "protocol/src"),
]
ERROR = re.compile(r'((?:[ \t]*///[^\n]*\n)+)[ \t]*#\[error\(\s*"((?:[^"\\]|\\.|\\\n)*)"', re.DOTALL)


def page(repository: pathlib.Path) -> str:
    """The whole page, in Markdown."""
    sections = []
    for title, folders in PARTS:
        rows = sorted({row for folder in folders.split() for row in rows_below(repository / folder)})
        if rows:
            sections.append(f"## {title}\n\n| message | when |\n|---|---|\n" + "".join(rows))
    if len(sections) < len(PARTS) // 2:
        raise SystemExit("error: scripts/message_reference.py finds no messages; its folders have moved")
    return INTRODUCTION + "\n" + "\n".join(sections)


def rows_below(folder: pathlib.Path) -> list[str]:
    """One line of the table for each message of the folder's sources."""
    rows = []
    for source in sorted(folder.rglob("*.rs")):
        for comment, text in ERROR.findall(source.read_text()):
            message = shown(text)
            if re.search(r"[a-z]{3}", re.sub(r"\*[^*]*\*", "", message)):
                rows.append(f"| {message} | {meaning(comment)} |\n")
    return rows


def shown(text: str) -> str:
    """A message as a reader sees it: without line breaks of the source, placeholders in italics."""
    text = re.sub(r"\\\n\s*", "", text).replace('\\"', '"').replace("\\n", " ")
    text = re.sub(r"\{\{|\}\}", "", text)
    parts = re.split(r"(\{[^}]*\})", text)
    shown_parts = [f"*{name(part)}*" if part.startswith("{") else cell(part) for part in parts]
    return "".join(shown_parts)


def name(placeholder: str) -> str:
    """`{silence:.1?}` is *silence*; `{}` is *…*."""
    inner = placeholder.strip("{}").split(":")[0].strip("_").replace("_", " ")
    return inner if inner and not inner.isdigit() else "…"


def meaning(comment: str) -> str:
    """The comment above the variant, in one line. Links to code lose their brackets."""
    lines = [line.strip().removeprefix("///").strip() for line in comment.strip().splitlines()]
    return cell(" ".join(lines).replace("[`", "`").replace("`]", "`"))


def cell(text: str) -> str:
    """Text for a cell of a table."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
