"""Pieces of HTML. Functions that take text escape it; what they return is markup."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from tokenswift_cli.display.wording import visible


def escape(text: str) -> str:
    """Text of anybody as markup: no tags, no quote that ends an attribute, control characters visible."""
    return html.escape(visible(text), quote=True)


def shortened(text: str, most: int) -> str:
    """At most ``most`` characters of a text, and how long it is where that is more."""
    return text if len(text) <= most else f"{text[:most]}… ({len(text):,} characters)"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, row_heads: bool = True) -> str:
    """A table of texts, in a box that scrolls sideways where the page is narrower.

    Args:
        head: titles of the columns; none for a table without them.
        rows: cells, as many in each.
        row_heads: whether the first cell of a row says what the row is.
    """
    titles = "".join(f'<th scope="col">{escape(title)}</th>' for title in head)
    body = "".join(f"<tr>{_cells(row, row_heads)}</tr>\n" for row in rows)
    header = f"<thead><tr>{titles}</tr></thead>\n" if head else ""
    # A box that scrolls must be reachable with the keyboard.
    return f'<div class="scroll" tabindex="0"><table>\n{header}<tbody>\n{body}</tbody></table></div>\n'


def _cells(row: Sequence[str], row_heads: bool) -> str:
    first = f'<th scope="row">{escape(row[0])}</th>' if row_heads else f"<td>{escape(row[0])}</td>"
    return first + "".join(f"<td>{escape(cell)}</td>" for cell in row[1:])


def facts(items: Iterable[tuple[str, str, str]]) -> str:
    """Headline numbers: name, value, and a remark (or none) below it."""
    cards = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}"
        + (f"<small>{escape(remark)}</small>" if remark else "")
        + "</dd></div>\n"
        for name, value, remark in items
    )
    return f'<dl class="facts">\n{cards}</dl>\n'


def paragraph(text: str, kind: str = "") -> str:
    """A paragraph of text; ``kind`` is a class of ours."""
    return f'<p class="{kind}">{escape(text)}</p>\n' if kind else f"<p>{escape(text)}</p>\n"


def bullets(texts: Iterable[str], kind: str = "") -> str:
    """A list of texts; ``kind`` is a class of ours."""
    items = "".join(f"<li>{escape(text)}</li>\n" for text in texts)
    return f'<ul class="{kind}">\n{items}</ul>\n'
