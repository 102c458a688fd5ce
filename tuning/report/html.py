"""HTML of a report: one file that asks the network for nothing, readable on a phone and in the dark."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from html import escape

from tuning.report.plots import Plot

# No source but the page itself: a browser enforces what a reader would have to believe.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"

_STYLE = """
:root { color-scheme: light dark; --page: #f3f5f8; --card: #ffffff; --ink: #1b2430; --faint: #5d6875; --line: #e0e5eb;
  --accent: #1f6fb2; --good: #0a7f5a; --bad: #b3261e; --unsure: #7a5c00; }
@media (prefers-color-scheme: dark) { :root { --page: #0f1318; --card: #171c23; --ink: #e4e9ef; --faint: #97a3b1; --line: #2d3540;
  --accent: #63b3f0; --good: #45c997; --bad: #ff8a80; --unsure: #e0c24a; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif;
  overflow-wrap: anywhere; }
main { max-width: 78rem; margin: 0 auto; padding: 1.25rem 1rem 4rem; }
h1 { font-size: clamp(1.5rem, 4.5vw, 2.1rem); line-height: 1.2; margin: .6rem 0 .2rem; letter-spacing: -.01em; }
h2 { font-size: 1.3rem; margin: 2.6rem 0 .3rem; letter-spacing: -.01em; }
h3 { font-size: 1rem; margin: 0 0 .3rem; }
p { margin: .35rem 0 .8rem; max-width: 48rem; }
a { color: var(--accent); }
code { font: .88em ui-monospace, "DejaVu Sans Mono", monospace; background: var(--line); border-radius: .3em; padding: .1em .35em; }
.lead, .note, figcaption, .reading { color: var(--faint); }
.note, figcaption, .reading { font-size: .88rem; }
nav { display: flex; flex-wrap: wrap; gap: .3rem .9rem; font-size: .88rem; margin: 1rem 0 0; }
nav a { text-decoration: none; }
.tiles { display: grid; gap: .75rem; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); margin: 1.2rem 0; }
.tile, figure, .claim, .card { background: var(--card); border: 1px solid var(--line); border-radius: .8rem; padding: .85rem 1rem; }
.tile b { display: block; font-size: 1.65rem; line-height: 1.25; font-variant-numeric: tabular-nums; letter-spacing: -.02em; }
.tile span { display: block; color: var(--faint); font-size: .82rem; line-height: 1.4; }
.tile.first { border-color: var(--good); } .tile.first b { color: var(--good); }
.grid { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fill, minmax(min(100%, 22rem), 1fr)); margin: 1rem 0; align-items: start; }
figure { margin: 0; } figure img { display: block; width: 100%; height: auto; } figcaption { margin-top: .6rem; line-height: 1.45; }
.tag { display: inline-block; font-size: .72rem; font-weight: 600; border: 1px solid currentColor; border-radius: 1rem; padding: 0 .55em; margin-right: .35rem; }
.modelled { color: var(--unsure); } .measured { color: var(--good); } .recorded { color: var(--accent); }
.claim { margin: .8rem 0; border-left: .35rem solid var(--faint); } .claim p { margin: .25rem 0; } .claim ul { margin: .4rem 0; padding-left: 1.1rem; }
.claim li { font-size: .92rem; font-variant-numeric: tabular-nums; margin: .15rem 0; }
.verdict { font-weight: 700; color: var(--faint); }
.confirmed { border-left-color: var(--good); } .confirmed .verdict { color: var(--good); }
.refuted { border-left-color: var(--bad); } .refuted .verdict { color: var(--bad); }
.cannot { border-left-color: var(--unsure); } .cannot .verdict { color: var(--unsure); }
.scroll { overflow-x: auto; background: var(--card); border: 1px solid var(--line); border-radius: .8rem; }
table { border-collapse: collapse; width: 100%; font-size: .86rem; font-variant-numeric: tabular-nums; overflow-wrap: normal; }
th, td { padding: .45rem .7rem; text-align: left; border-bottom: 1px solid var(--line); vertical-align: top; }
td { min-width: 3.4rem; } td:nth-child(2) { min-width: 11rem; }
tr:last-child > td { border-bottom: 0; } th { color: var(--faint); font-weight: 600; white-space: nowrap; }
tr.best { background: color-mix(in srgb, var(--good) 9%, transparent); }
dl { display: grid; grid-template-columns: minmax(7rem, max-content) 1fr; gap: .3rem 1rem; margin: 0; font-size: .9rem; } dt { color: var(--faint); } dd { margin: 0; }
@media (max-width: 40rem) {
  body { font-size: 15px; } main { padding: .8rem .7rem 3rem; } figure { padding: .5rem; } .tile { padding: .6rem .75rem; } .tile b { font-size: 1.35rem; }
  .tiles { grid-template-columns: 1fr 1fr; gap: .5rem; }
  .scroll { overflow: visible; background: none; border: 0; } thead { display: none; } table, tbody { display: block; }
  tr { display: grid; grid-template-columns: 1fr 1fr; column-gap: 1.2rem; background: var(--card); border: 1px solid var(--line); border-radius: .8rem;
    padding: .5rem .8rem; margin: .6rem 0; }
  td, td:nth-child(2) { display: flex; gap: .6rem; justify-content: space-between; border: 0; padding: .1rem 0; min-width: 0; text-align: right; overflow-wrap: anywhere; }
  td:empty { display: none; } td::before { content: attr(data-name); color: var(--faint); text-align: left; flex: none; max-width: 55%; }
  td.wide, td.wide:nth-child(2) { grid-column: 1 / -1; }
  dl { grid-template-columns: 1fr; gap: 0; } dd { margin-bottom: .5rem; }
}
"""


def page(title: str, head: str, sections: Sequence[tuple[str, str]]) -> str:
    """The document: `head` and the (heading, HTML) sections, linked from the top."""
    links = "".join(f'<a href="#s{i}">{escape(heading)}</a>' for i, (heading, _) in enumerate(sections))
    body = "".join(
        f'<section id="s{i}"><h2>{escape(heading)}</h2>{html}</section>' for i, (heading, html) in enumerate(sections)
    )
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}"><title>{escape(title)}</title><style>{_STYLE}</style></head>'
        f"<body><main>{head}<nav>{links}</nav>{body}</main></body></html>\n"
    )


def paragraph(text: str, kind: str = "") -> str:
    """Plain text."""
    return f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"


def tiles(entries: Sequence[tuple[str, str]]) -> str:
    """(number, what it is) in boxes, the first one stressed."""
    boxes = (
        f'<div class="tile{" first" if i == 0 else ""}"><b>{escape(number)}</b><span>{escape(what)}</span></div>'
        for i, (number, what) in enumerate(entries)
    )
    return f'<div class="tiles">{"".join(boxes)}</div>'


def figure(drawn: Plot, title: str, caption: str, kind: str) -> str:
    """A picture in both schemes; `kind` is "measured", "recorded" or "modelled"."""
    light, dark = (f"data:image/png;base64,{base64.b64encode(data).decode()}" for data in (drawn.light, drawn.dark))
    return (
        f'<figure><h3>{escape(title)}</h3><picture><source media="(prefers-color-scheme: dark)" srcset="{dark}">'
        f'<img src="{light}" alt="{escape(drawn.alt)}"></picture>'
        f'<figcaption><span class="tag {kind}">{kind}</span>{escape(caption)}</figcaption></figure>'
    )


def grid(figures: Sequence[str]) -> str:
    """Figures side by side where there is room."""
    return f'<div class="grid">{"".join(figures)}</div>'


def table(rows: Sequence[Mapping[str, str]], best: str | None = None) -> str:
    """Rows of equal keys; on a phone every row is a card. `best`: the first column's value in the row to stress."""
    if not rows:
        return ""
    columns = list(rows[0])
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = ""
    for row in rows:
        cells = "".join(
            f'<td data-name="{escape(column)}"{_wide(column, row)}>{escape(row[column])}</td>' for column in columns
        )
        body += f'<tr class="best">{cells}</tr>' if row[columns[0]] == best else f"<tr>{cells}</tr>"
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _wide(column: str, row: Mapping[str, str]) -> str:
    """On a phone cells stand in two columns; long ones take both."""
    return ' class="wide"' if len(column) + len(row[column]) > 17 else ""


def claim(text: str, reading: str, verdict: str, numbers: Sequence[str], basis: str) -> str:
    """One claim with its verdict."""
    items = "".join(f"<li>{escape(number)}</li>" for number in numbers)
    notes = "".join(f'<p class="reading">{escape(note)}</p>' for note in (reading, basis) if note)
    return (
        f'<div class="claim {verdict.split()[0]}"><h3>{escape(text)}</h3><span class="verdict">{escape(verdict)}</span>'
        f"<ul>{items}</ul>{notes}</div>"
    )


def definitions(entries: Mapping[str, str]) -> str:
    """Names and values."""
    return f'<div class="card"><dl>{"".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in entries.items())}</dl></div>'
