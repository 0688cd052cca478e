#!/usr/bin/env python3
"""Builds the documentation site into target/docs/site and checks every link in it.

The pages stay where they are: Markdown below docs/ and a few files of the root. They are copied as they lie, so that a link
works in the repository and on the site. docs/SUMMARY.md is the table of contents; the decisions of docs/adr follow it.

    python3 scripts/docs_site.py MDBOOK          build with this mdBook, then check
    python3 scripts/docs_site.py --check FOLDER  check the links of a built site
"""

import html.parser
import pathlib
import posixpath
import re
import shutil
import subprocess
import sys
import urllib.parse

import message_reference

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
OUTPUT = REPOSITORY / "target" / "docs"
SITE = OUTPUT / "site"
ROOT_PAGES = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"]
# This chapter is written when the site is built. It has no file in the repository.
MESSAGES = pathlib.Path("docs/messages.md")
# The list of all decisions is added when the site is built.
DECISIONS = pathlib.Path("docs/adr/index.md")
# mdBook's own pages. They repeat all other pages, or none.
GENERATED = {"print.html", "404.html", "toc.html"}
MARKDOWN_LINK = re.compile(r"\]\(([^)\s]+)\)")
# A decision by its number, as code and pages cite it.
CITATION = re.compile(r"\b(?:ADR|[Dd]ecision) ([0-9]+)\b|\badr/([0-9]{4})")


def main(arguments: list[str]) -> int:
    """Builds and checks, or only checks. Returns the exit code."""
    if len(arguments) == 2 and arguments[0] == "--check":
        return report(broken_links(pathlib.Path(arguments[1])))
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    missing = [f"docs/SUMMARY.md: has no line for {page}" for page in pages_without_chapter()] + missing_decisions()
    if missing:
        return report(missing)
    stage()
    subprocess.run([arguments[0], "build", str(OUTPUT)], check=True, env={"MDBOOK_LOG": "warn"})
    return report(broken_links(SITE))


def report(problems: list[str]) -> int:
    """Prints each problem, or the path of the site."""
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    if not problems:
        pages = sum(1 for _ in SITE.rglob("*.html"))
        print(f"docs: {pages} pages, every link checked: {(SITE / 'index.html').relative_to(REPOSITORY)}")
    return 1 if problems else 0


def pages() -> list[pathlib.Path]:
    """Every page of the site, relative to the repository."""
    below_docs = (page.relative_to(REPOSITORY) for page in sorted((REPOSITORY / "docs").rglob("*.md")))
    return [pathlib.Path(name) for name in ROOT_PAGES] + [page for page in below_docs if page.name != "SUMMARY.md"]


def pages_without_chapter() -> list[str]:
    """Pages that the table of contents does not name. mdBook would skip them without a message."""
    named = set(MARKDOWN_LINK.findall(summary()))
    return [page.as_posix() for page in pages() if page.as_posix() not in named]


def summary() -> str:
    """The table of contents, with paths that start at the repository."""
    text = (REPOSITORY / "docs" / "SUMMARY.md").read_text()
    chapters = "".join(f"  - [{title}]({page.relative_to('docs')})\n" for page, title in decisions())
    return MARKDOWN_LINK.sub(lambda link: f"]({posixpath.normpath('docs/' + link.group(1))})", text + chapters)


def decisions() -> list[tuple[pathlib.Path, str]]:
    """Every decision of docs/adr with its title, for the end of the table of contents."""
    found = sorted((REPOSITORY / "docs" / "adr").glob("[0-9]*.md"))
    return [(page.relative_to(REPOSITORY), page.read_text().split("\n")[0].removeprefix("# ")) for page in found]


def missing_decisions() -> list[str]:
    """Citations, in the whole repository, of decisions that have no page."""
    numbers = {int(page.name[:4]) for page, _ in decisions()}
    problems = []
    for name in subprocess.run(["git", "ls-files"], cwd=REPOSITORY, check=True, capture_output=True, text=True).stdout.splitlines():
        path = REPOSITORY / name
        text = path.read_text(errors="ignore") if path.is_file() else ""
        cited = {int(first or second) for first, second in CITATION.findall(text)}
        problems += [f"{name}: cites decision {number}, which has no page in docs/adr" for number in sorted(cited - numbers)]
    return problems


def stage() -> None:
    """Copies the pages, their pictures and the files that they link to."""
    shutil.rmtree(OUTPUT, ignore_errors=True)
    source = OUTPUT / "source"
    for page in pages():
        copy(page, source)
        for link in MARKDOWN_LINK.findall((REPOSITORY / page).read_text()):
            target = pathlib.Path(posixpath.normpath((page.parent / link.split("#")[0]).as_posix()))
            if target.suffix != ".md" and (REPOSITORY / target).is_file():
                copy(target, source)
    with (source / DECISIONS).open("a") as index:
        index.writelines(f"- [{title}]({page.name})\n" for page, title in decisions())
    (source / MESSAGES).write_text(message_reference.page(REPOSITORY))
    (source / "SUMMARY.md").write_text(summary())
    shutil.copy(REPOSITORY / "docs" / "book.toml", OUTPUT)


def copy(path: pathlib.Path, source: pathlib.Path) -> None:
    """Copies a file of the repository to the same place below `source`."""
    (source / path).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(REPOSITORY / path, source / path)


class Page(html.parser.HTMLParser):
    """The links of a page, and its anchors."""

    def __init__(self, text: str):
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value and tag != "base":
                self.links.append(value)
            elif name in ("id", "name") and value:
                self.anchors.add(value)


def broken_links(site: pathlib.Path) -> list[str]:
    """Every link to a file or an anchor that does not exist in the site."""
    read = {path: Page(path.read_text()) for path in site.rglob("*.html")}
    problems = []
    for path, page in sorted(read.items()):
        if path.name in GENERATED:
            continue
        for link in dict.fromkeys(page.links):
            problem = check_link(site, path, link, read)
            if problem:
                problems.append(f"{path.relative_to(site)}: {link}: {problem}")
    return problems


def check_link(site: pathlib.Path, path: pathlib.Path, link: str, read: dict[pathlib.Path, Page]) -> str | None:
    """Why a link of the page at `path` is broken. None for a good link, and for one that leaves the site."""
    parts = urllib.parse.urlsplit(link)
    if parts.scheme or parts.netloc:
        return None
    name = urllib.parse.unquote(parts.path)
    target = path if not name else (site / name.lstrip("/") if name.startswith("/") else path.parent / name).resolve()
    if target.is_dir():
        target = target / "index.html"
    if not target.is_file():
        return "there is no such page or file"
    anchor = urllib.parse.unquote(parts.fragment)
    if anchor and target in read and anchor not in read[target].anchors:
        return "the page has no such heading"
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
