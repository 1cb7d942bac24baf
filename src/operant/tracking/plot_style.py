"""The style of all pictures. They are drawn without pyplot: no global state, no display needed."""

from __future__ import annotations

import io
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from operant.errors import as_folder, value_error

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito 2008: told apart also by the colour-blind; yellow is left out, being unreadable on white.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#4D4D4D")
DASHES: tuple[Any, ...] = ("-", (0, (6, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)))
"""Line styles: the next one once all colours are used up."""
INK = "#333333"
GRID = "#E4E4E4"
PALE = "#777777"
LEGEND_WIDTH = 44
"""Characters in a line of a legend."""
LEGEND_LINES = 12
"""Most lines of a legend, though each curve has at least one: long labels are cut short so that curves can
be seen."""
FORMATS = (".png", ".svg", ".pdf")


def line_style(index: int) -> tuple[str, Any]:
    """Return colour and dashes of the line of that number; no two of the first 28 are alike."""
    return COLORS[index % len(COLORS)], DASHES[index // len(COLORS) % len(DASHES)]


def figure(width: float = 7.2, height: float = 4.4) -> Figure:
    """Return an empty figure of so many inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    drawing = Figure(figsize=(width, height), dpi=160, layout="constrained", facecolor="white")
    FigureCanvasAgg(drawing)
    return drawing


def label_axes(
    ax: Axes,
    title: str,
    x_label: str,
    y_label: str,
    legend: str,
    note: str = "",
    numbers: str = "xy",
    ticks: int = 7,
) -> None:
    """Give the axes their labels and style.

    `legend` is its place if there is anything for one (empty: none), `note` a line between title and axes,
    and `numbers` says which axes have numbers: ``xy``, ``x`` or ``y``, at about `ticks` places. Texts are
    drawn as they are, a $ among them.
    """
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    ax.set_title(
        literal(title), loc="left", fontsize=13, fontweight="bold", color=INK, pad=26 if note else 10
    )
    if note:
        line = ax.annotate(
            literal(note),
            (0, 1),
            (0, 9),
            xycoords="axes fraction",
            textcoords="offset points",
            fontsize=9.5,
            color=PALE,
        )
        line.set_in_layout(False)  # a long note must not make its panel wider than others
    ax.set_xlabel(literal(x_label), fontsize=11, color=INK, labelpad=6)
    ax.set_ylabel(literal(y_label), fontsize=11, color=INK, labelpad=6)
    ax.grid(True, color=GRID, linewidth=0.8)
    ax.set_axisbelow(True)
    for side in ("top", "right", "left"):
        ax.spines[side].set_visible(False)
    ax.spines["bottom"].set_color("#999999")
    ax.tick_params(colors=INK, labelsize=10, length=0, pad=5)
    for axis in [{"x": ax.xaxis, "y": ax.yaxis}[name] for name in numbers]:
        axis.set_major_locator(MaxNLocator(ticks, steps=[1, 2, 2.5, 5, 10]))
        axis.set_major_formatter(StrMethodFormatter("{x:,.10g}"))
    ax.margins(x=0.015, y=0.06)
    handles, labels = ax.get_legend_handles_labels()
    if labels and legend:
        lines = max(1, min(4, LEGEND_LINES // len(labels)))
        wrapped = [
            textwrap.fill(
                literal(label), LEGEND_WIDTH, subsequent_indent="   ", max_lines=lines, placeholder=" ..."
            )
            for label in labels
        ]
        ax.legend(
            handles, wrapped, loc=legend, fontsize=10, labelcolor=INK, framealpha=0.85, edgecolor="none"
        )


def literal(text: str) -> str:
    """Return a text such that matplotlib takes no part of it, as between two $, for mathematics."""
    return text.replace("$", r"\$")


def check_format(out: str | Path) -> Path:
    """Refuse (SpecError) a file that no picture can be written to: a folder, or of another suffix."""
    path = Path(out)
    if path.suffix.lower() not in FORMATS or path.is_dir():
        raise value_error("out", f"a file that ends with {', '.join(FORMATS)}", str(out))
    as_folder("out", path.parent, str(out))
    return path


def save(figure: Any, out: str | Path) -> Path:
    """Write a figure, in the format that the suffix says; equal figures give equal files."""
    out = check_format(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    _write(figure, out, out.suffix.lower())
    return out


def as_svg(figure: Any) -> str:
    """Return a figure as SVG without a background, its text as text."""
    buffer = io.StringIO()
    _write(figure, buffer, ".svg", transparent=True)
    return buffer.getvalue()


def _write(figure: Any, to: Any, suffix: str, **how: Any) -> None:
    import matplotlib

    metadata = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(suffix, {})
    with matplotlib.rc_context({"svg.hashsalt": "operant", "svg.fonttype": "none"}):
        figure.savefig(to, format=suffix[1:], metadata=metadata, **how)
