"""A page of HTML in one file, which loads nothing: text, tables, figures and videos, in light and dark."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from operant.tracking.plot_style import COLORS, GRID, INK, PALE, as_svg

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_VARIABLES = {
    **{color.lower(): f"c{i}" for i, color in enumerate(COLORS)},
    INK.lower(): "ink",
    GRID.lower(): "grid",
    PALE.lower(): "pale",
    "#999999": "pale",
    "#ffffff": "paper",
}
"""Colours of figures, and the variables of the style sheet that stand for them on the page."""


class Page:
    """Collects the parts of a page in order. Every text is escaped: it may come from somebody else's file."""

    def __init__(self, title: str) -> None:
        self._title = escape(title)
        self._parts: list[str] = [f"<h1>{self._title}</h1>"]

    def heading(self, text: str, level: int = 2) -> None:
        """Add a heading of level 2 or 3."""
        self._parts.append(f"<h{level}>{escape(text)}</h{level}>")

    def text(self, text: str) -> None:
        """Add a paragraph."""
        self._parts.append(f"<p>{escape(text)}</p>")

    def code(self, text: str) -> None:
        """Add a command."""
        self._parts.append(f"<pre>{escape(text)}</pre>")

    def legend(self, styles: Mapping[str, tuple[str, Any]]) -> None:
        """Add which label has which colour and dashes."""
        entries = "".join(
            f'<li><span style="border-color: {_variable(color)}; '
            f'border-top-style: {"solid" if dashes == "-" else "dashed"}"></span>{escape(label)}</li>'
            for label, (color, dashes) in styles.items()
        )
        self._parts.append(f'<ul class="legend">{entries}</ul>')

    def table(self, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Add a table."""
        lines = [("th", header), *(("td", row) for row in rows)]
        body = "".join(
            f"<tr>{''.join(f'<{tag}>{escape(str(cell))}</{tag}>' for cell in row)}</tr>" for tag, row in lines
        )
        self._parts.append(f'<div class="table"><table>{body}</table></div>')

    def figures(
        self, drawn: Sequence[tuple[str, str, Figure]], fold: str | None = None, classes: str = ""
    ) -> None:
        """Add figures, each with a title and what it shows; behind the line `fold`, if there is one."""
        body = "".join(
            f'<figure class="{classes}"><figcaption>{escape(title)}<small>{escape(about)}</small>'
            f"</figcaption>{_inline(figure, title)}</figure>"
            for title, about, figure in drawn
        )
        body = f'<div class="figures">{body}</div>'
        summary = f"<summary>{escape(fold or '')}</summary>"
        self._parts.append(body if fold is None else f"<details>{summary}{body}</details>")

    def video(self, file: Path) -> None:
        """Add a video (.mp4), which becomes a part of the page."""
        data = base64.b64encode(file.read_bytes()).decode()
        self._parts.append(
            f'<video controls loop muted playsinline src="data:video/mp4;base64,{data}"></video>'
        )

    def __str__(self) -> str:
        style = Path(__file__).with_suffix(".css").read_text(encoding="utf-8")
        head = (
            '<!DOCTYPE html>\n<html lang="en">\n<meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            # Even if something slipped through the escaping, it could run nothing and load nothing.
            '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
            "style-src 'unsafe-inline'; img-src data:; media-src data:\">\n"
        )
        parts = "\n".join(self._parts)
        return f"{head}<title>{self._title}</title>\n<style>\n{style}</style>\n{parts}\n</html>\n"


def _variable(color: str) -> str:
    return f"var(--{_VARIABLES[color.lower()]})"


def _inline(figure: Figure, title: str) -> str:
    """Return a figure as SVG whose colours are the page's, and whose size is that of its place."""
    svg = as_svg(figure)
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    svg = re.sub(r' id="[\w.]*_\d+"', "", svg)  # nothing refers to them, and several figures share them
    svg = re.sub(r' (width|height)="[\d.]+pt"', "", svg, count=2)
    svg = re.sub(
        r"(fill|stroke): (#[0-9a-f]{6})",
        lambda found: f"{found[1]}: var(--{_VARIABLES[found[2]]})" if found[2] in _VARIABLES else found[0],
        svg,
    )
    return svg.replace("<svg ", f'<svg role="img" aria-label="{escape(title)}" ', 1).strip()
