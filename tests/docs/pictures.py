"""Draws docs/images/*.svg, pictures of docs/blackwell_kernel.md and profile.md, with their data.

python -m tests.docs.pictures
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from .picture_data import CHUNK, DATA, SPAN

IMAGES = Path(__file__).parents[2] / "docs" / "images"
DESCRIPTION = "{http://purl.org/dc/elements/1.1/}description"

COLOURS = ("#3b75af", "#c23b3b", "#3d8f4f", "#d8a23c", "#8a5bb5", "#78b04a", "#7f7f7f", "#4aa3a3")
EMPTY, LINE = "#eeeeee", "#555555"


def _axes(figure: Figure, rows: int, columns: int) -> list[Any]:
    return list(figure.subplots(rows, columns, squeeze=False).flat)


def _bare(axes: Any) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(False)


def _cell(axes: Any, at: tuple[float, float], size: tuple[float, float], colour: str) -> None:
    axes.add_patch(Rectangle(at, *size, facecolor=colour, edgecolor="white", linewidth=1))


def _label(axes: Any, at: tuple[float, float], text: str, **style: Any) -> None:
    axes.text(*at, text, **{"color": "white", "ha": "center", "va": "center", **style})


def draw_swizzle(data: dict[str, Any]) -> Figure:
    """8 rows of 128 bytes, in chunks of 16."""
    figure = Figure(figsize=(7.6, 3.6), layout="constrained")
    [axes] = _axes(figure, 1, 1)
    for row, (holds, reader) in enumerate(zip(data["holds"], data["reader"], strict=True)):
        for place, (chunk, mma) in enumerate(zip(holds, reader, strict=True)):
            _cell(axes, (place, row), (1, 1), COLOURS[mma])
            first = chunk * CHUNK // 2
            _label(axes, (place + 0.5, row + 0.5), f"k {first}-{first + 7}")
    places = range(SPAN // CHUNK)
    axes.set_xlim(0, len(places))
    axes.set_ylim(8, 0)
    _bare(axes)
    axes.set_xticks([p + 0.5 for p in places], [f"+{p * CHUNK}" for p in places])
    axes.set_yticks([r + 0.5 for r in range(8)], [f"row {r}: {r * SPAN}" for r in range(8)])
    axes.tick_params(length=0)
    axes.set_title("Bytes of shared memory: 8 rows of a K-major tile of 16-bit elements")
    handles = [Patch(color=COLOURS[i], label=f"MMA {i} reads") for i in range(4)]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False)
    return figure


def draw_masks(data: list[dict[str, Any]]) -> Figure:
    """A row for each cluster: who gets A, who gets B, whom the commit tells."""
    figure = Figure(figsize=(7.6, 6.9), layout="constrained")
    all_axes = iter(_axes(figure, len(data), 3))
    for cluster in data:
        rows, columns, group = cluster["rows"], cluster["columns"], cluster["cta_group"]
        shown = (
            ("a", "its share of A goes to", COLOURS[0]),
            ("b", "its share of B goes to", COLOURS[2]),
            ("commit", f"its commit tells (each waits for {cluster['arrivals']})", COLOURS[1]),
        )
        for which, title, colour in shown:
            axes, mask = next(all_axes), cluster[which]
            for rank in range(rows * columns):
                at = rank // rows, rank % rows
                there = mask >> rank & 1
                _cell(axes, at, (1, 1), colour if there else EMPTY)
                middle = at[0] + 0.5, at[1] + 0.5
                _label(axes, middle, str(rank), color="white" if there else LINE)
                if group == 2 and rank % 2 == 0:
                    pair = Rectangle((at[0] + 0.06, at[1] + 0.06), 0.88, 1.88, fill=False, zorder=3)
                    pair.set(edgecolor=LINE, linewidth=0.9)
                    axes.add_patch(pair)
            axes.set_xlim(0, columns)
            axes.set_ylim(rows, 0)
            axes.set_aspect("equal")
            _bare(axes)
            axes.set_title(f"CTA 0: {title}\n{mask:#06x}", fontsize=8)
            if which == "a":
                kind = "pairs" if group == 2 else "single CTAs"
                axes.set_ylabel(f"{rows}x{columns}, {kind}")
    return figure


def draw_tensor_memory(data: list[dict[str, Any]]) -> Figure:
    """Lanes down, columns across, for each kind of tile."""
    figure = Figure(figsize=(7.6, 5.2), layout="constrained")
    for axes, tile in zip(_axes(figure, 2, 2), data, strict=True):
        _cell(axes, (0, 0), (512, 128), EMPTY)
        for slot, regions in enumerate(tile["regions"]):
            for lane, lanes, column, columns in regions:
                _cell(axes, (column, lane), (columns, lanes), COLOURS[slot])
            column, columns = regions[0][2:]
            whose = "MMA tile" if tile["tiles_of_an_item"] > 1 else "accumulator"
            middle = 64 if len(regions) == 1 else 24  # between the lanes that are used
            at = column + columns / 2, middle
            _label(axes, at, f"{whose} {slot}", color="black", fontsize=8)
        axes.set_xlim(0, 512)
        axes.set_ylim(128, 0)
        ends = {sum(region[2:]) for regions in tile["regions"] for region in regions}
        axes.set_xticks(sorted({0, 256, *ends} - {512}))
        axes.set_yticks([0, 32, 64, 96, 128])
        block_m, block_n = tile["tile"]
        who = "a pair" if tile["cta_group"] == 2 else "one CTA"
        axes.set_title(f"{block_m}x{block_n} by {who}", fontsize=9)
    figure.supxlabel("columns of Tensor Memory, 32 bits each", fontsize=9)
    figure.supylabel("lanes", fontsize=9)
    return figure


NAMES = {
    "launch control": "launch control asks",
    "TMA load": "TMA loads stages",
    "tensor core": "tensor core multiplies",
    "TMEM load": "epilogue reads TMEM",
    "TMA store": "TMA stores D",
}


def draw_pipeline(data: dict[str, Any]) -> Figure:
    """A row for each engine, a colour for each work item."""
    figure = Figure(figsize=(7.6, 2.6), layout="constrained")
    [axes] = _axes(figure, 1, 1)
    for row, (name, bars) in enumerate(data["bars"].items()):
        asks = name == "launch control"
        for number, (begin, end) in enumerate(bars):
            item = number + asks
            refused = item >= data["items"]
            colour = COLOURS[-2] if refused else COLOURS[item]
            low = row + (0.12 if number % 2 == 0 else 0.5)
            axes.add_patch(Rectangle((begin, low), end - begin, 0.36, facecolor=colour))
            text = "none" if refused else str(item)
            _label(axes, ((begin + end) / 2, low + 0.18), text, fontsize=7)
    axes.set_xlim(0, max(end for bars in data["bars"].values() for _, end in bars))
    axes.set_ylim(len(data["bars"]), 0)
    axes.set_yticks(
        [row + 0.5 for row in range(len(NAMES))], [NAMES[name] for name in data["bars"]]
    )
    axes.tick_params(length=0, axis="y")
    axes.set_xlabel("emulated steps: order, not time. The number is that of the work item")
    return figure


def draw_profile(data: dict[str, dict[str, dict[str, float]]]) -> Figure:
    """A bar for each matmul, of what the warps of a role did."""
    figure = Figure(figsize=(7.6, 4.4), layout="constrained")
    names = list(dict.fromkeys(n for bars in data.values() for bar in bars.values() for n in bar))
    colours = dict(zip(names, COLOURS, strict=False))
    for axes, (role, bars) in zip(_axes(figure, 2, 1), data.items(), strict=True):
        axes.barh(list(bars), 1, color=EMPTY)
        for row, bar in enumerate(bars.values()):
            begin = 0.0
            for name, share in bar.items():
                axes.barh(row, share, left=begin, color=colours[name])
                if share >= 0.05:
                    _label(axes, (begin + share / 2, row), f"{share:.0%}", fontsize=7)
                begin += share
        axes.set_xlim(0, 1)
        axes.invert_yaxis()
        _bare(axes)
        axes.set_yticks(range(len(bars)), list(bars))
        axes.tick_params(length=0)
        axes.set_title(f"{role} warps", fontsize=9)
    handles = [Patch(color=colour, label=name) for name, colour in colours.items()]
    handles.append(Patch(color=EMPTY, label="all else"))
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False)
    return figure


DRAW: dict[str, Callable[[Any], Figure]] = {
    "swizzle": draw_swizzle,
    "multicast-masks": draw_masks,
    "tensor-memory": draw_tensor_memory,
    "pipeline": draw_pipeline,
    "profile": draw_profile,
}


def path(name: str) -> Path:
    """Where a picture lies."""
    return IMAGES / f"{name}.svg"


def data_of(picture: Path) -> Any:
    """What a picture shows, as it says itself."""
    [description] = ElementTree.parse(picture).iter(DESCRIPTION)
    return json.loads(description.text or "")


def main() -> None:
    """Draws them all."""
    style = mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "jaxbw", "font.size": 9.0})
    with style:
        for name, draw in DRAW.items():
            data = DATA[name]()
            metadata = {"Description": json.dumps(data), "Date": None}
            draw(data).savefig(path(name), metadata=metadata)
            # matplotlib leaves blanks at the ends of lines.
            path(name).write_text(re.sub(r" +$", "", path(name).read_text(), flags=re.MULTILINE))


if __name__ == "__main__":
    main()
