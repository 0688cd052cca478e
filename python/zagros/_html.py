"""How objects look in a notebook: small tables of HTML."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence


def table(title: str, rows: Iterable[Sequence[object]], head: Sequence[str] = ()) -> str:
    """A table with a title. Every cell is shown as text; numbers are to the right."""

    def cell(value: object, tag: str) -> str:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        text = f"{value:,}" if isinstance(value, int) and is_number else f"{value:.4f}" if isinstance(value, float) else str(value)
        return f'<{tag} style="text-align:{"right" if is_number else "left"}">{html.escape(text)}</{tag}>'

    def row(values: Sequence[object], tag: str = "td") -> str:
        return f"<tr>{''.join(cell(value, tag) for value in values)}</tr>"

    heading = f"<thead>{row(head, 'th')}</thead>" if head else ""
    return f"<table><caption>{html.escape(title)}</caption>{heading}<tbody>{''.join(map(row, rows))}</tbody></table>"
