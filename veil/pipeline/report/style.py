"""How the report looks: on a telephone and a wide screen, by day and by night, and on paper."""

from __future__ import annotations

from typing import Final

_DAY: Final = """
  --ground: #f6f4ef; --card: #ffffff; --ink: #1b2230; --muted: #5c6575; --line: #e2ded4; --grid: #ece9e1;
  --present: #b0500c; --recommended: #0a6b60; --sent: #4464a8; --deleted: #2c7f5e; --lapses: #b98310;
  --duplicates: #b3263f; --dead: #6d43a3; --other: #8a93a3; --wash: #faf8f3; --shade: #eef4f2;
"""
_NIGHT: Final = """
  --ground: #0f131a; --card: #171d27; --ink: #e6e9ef; --muted: #9aa5b6; --line: #2b3340; --grid: #242b37;
  --present: #f2a765; --recommended: #55c9b7; --sent: #8daeef; --deleted: #62c39a; --lapses: #e0b64e;
  --duplicates: #f27f92; --dead: #b99cf2; --other: #78839a; --wash: #1b222d; --shade: #1a2a2c;
"""

STYLE: Final = (
    ":root { color-scheme: light;"
    + _DAY
    + "}\n@media screen and (prefers-color-scheme: dark) { :root { color-scheme: dark;"
    + _NIGHT
    + "} }"
    + """
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; scroll-behavior: smooth; }
body { margin: 0; background: var(--ground); color: var(--ink); overflow-wrap: anywhere;
  font: 15px/1.55 ui-sans-serif, system-ui, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  font-variant-numeric: tabular-nums; }
main, header.top, footer { max-width: 1180px; margin: 0 auto; padding: 0 16px; }
h1, h2, h3 { font-family: Charter, "Bitstream Charter", "Sitka Text", Cambria, Georgia, serif; line-height: 1.2;
  font-weight: 600; text-wrap: balance; }
h1 { font-size: clamp(27px, 4.4vw, 40px); margin: 0 0 10px; letter-spacing: -0.012em; }
h2 { font-size: clamp(21px, 2.6vw, 26px); margin: 56px 0 6px; letter-spacing: -0.008em; }
h3 { font-size: 18px; margin: 0; }
p { margin: 0 0 10px; max-width: 76ch; }
a { color: inherit; text-decoration-color: var(--other); text-underline-offset: 3px; }
a:hover { text-decoration-color: currentColor; }
a:focus-visible { outline: 2px solid var(--recommended); outline-offset: 2px; border-radius: 2px; }
code, .mono { font: 0.92em/1.4 ui-monospace, "SF Mono", "Cascadia Mono", Menlo, Consolas, monospace; }
.muted { color: var(--muted); }
.small { font-size: 13px; }
.name { font-weight: 600; }

header.top { padding-top: clamp(28px, 5vw, 56px); }
.eyebrow { font-size: 13px; letter-spacing: 0.09em; text-transform: uppercase; color: var(--muted); margin: 0 0 12px; }
.lead { font-size: clamp(16px, 1.6vw, 18px); max-width: 68ch; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(148px, 1fr)); gap: 12px; margin: 24px 0 0;
  padding: 0; list-style: none; }
.tiles li, .card { background: var(--card); border: 1px solid var(--line); border-radius: 10px; }
.tiles li { padding: 13px 16px 12px; }
.tiles b { display: block; font-size: 23px; white-space: nowrap; line-height: 1.2; font-weight: 600; letter-spacing: -0.01em; }
.tiles span { color: var(--muted); font-size: 13px; line-height: 1.35; display: block; }

.card { padding: clamp(14px, 2vw, 24px); margin: 16px 0; }
.scroll { overflow-x: auto; margin: 0 -4px; padding: 0 4px; }
table { border-collapse: collapse; width: 100%; font-size: 14px; line-height: 1.4; }
th { text-align: left; font-weight: 500; font-size: 12.5px; color: var(--muted); padding: 6px 10px 7px;
  border-bottom: 1px solid var(--line); vertical-align: bottom; overflow-wrap: normal; }
td { padding: 8px 10px; border-bottom: 1px solid var(--grid); vertical-align: top; }
tr:last-child > td { border-bottom: 0; }
th:first-child, td:first-child { padding-left: 2px; }
th:last-child, td:last-child { padding-right: 2px; }
.right { text-align: right; white-space: nowrap; }
td.fixed, th { white-space: nowrap; }
td.name { min-width: 132px; }
td .sub { display: block; color: var(--muted); font-size: 12.5px; }
tr.type td { padding-top: 4px; padding-bottom: 6px; font-size: 13px; color: var(--muted); }
tr.type td:first-child { padding-left: 18px; }
tr.has-types > td { border-bottom-color: transparent; }
tr.chosen td { background: var(--shade); }
.headline td { white-space: nowrap; }
.headline td.who { white-space: normal; min-width: 150px; }
.headline td.to { font-weight: 600; color: var(--recommended); }
.headline .none { color: var(--muted); font-weight: 400; }

.chip { display: inline-block; font-size: 12px; line-height: 1.35; font-weight: 600; padding: 2px 9px; border-radius: 999px;
  border: 1px solid currentColor; white-space: nowrap; font-family: ui-sans-serif, system-ui, "Segoe UI", Roboto, sans-serif; }
.chip.short { color: var(--duplicates); }
.chip.long { color: var(--lapses); }
.chip.right { color: var(--deleted); }
.chip.unknown { color: var(--muted); border-style: dashed; }
.tag { color: var(--present); font-size: 12.5px; margin-left: 6px; }
.tag.recommended { color: var(--recommended); }

.queue header { display: flex; flex-wrap: wrap; gap: 4px 12px; align-items: baseline; margin-bottom: 4px; }
.queue h3 { font-size: 21px; }
.queue .change { font-size: 15px; font-weight: 600; margin-left: auto; white-space: nowrap; }
.queue .change s { color: var(--present); text-decoration: none; font-weight: 500; }
.queue .change em { color: var(--recommended); font-style: normal; }
.queue .evidence { color: var(--muted); font-size: 13px; margin: 14px 0 0; max-width: none; }
.beside > figure + figure { margin-top: 22px; }
.by-type, .when-what { margin-top: 26px; }
.replay { border-left: 3px solid var(--recommended); background: var(--shade); padding: 9px 14px; border-radius: 0 6px 6px 0;
  margin: 14px 0 4px; max-width: none; }
.lacking { border-left: 3px dashed var(--other); background: var(--wash); padding: 9px 14px;
  margin: 14px 0 4px; max-width: none; }
.pair { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 22px 36px; margin-top: 20px; align-items: start; }
.card > .pair:first-child { margin-top: 0; }
.pair + .pair { margin-top: 26px; }
figure { margin: 0; min-width: 0; break-inside: avoid; }
figcaption, .caption { font-size: 13px; color: var(--muted); margin: 0 0 2px; line-height: 1.4; }
figcaption b, .caption b { color: var(--ink); font-weight: 600; }

svg { display: block; overflow: visible; }
svg text { font-size: 11.5px; fill: var(--ink); paint-order: stroke; stroke: var(--card); stroke-width: 4px;
  stroke-linejoin: round; }
svg text.tick, svg text.axis, svg text.note { fill: var(--muted); font-size: 11px; }
svg text.end { text-anchor: end; }
svg text.middle { text-anchor: middle; }
svg text.present { fill: var(--present); font-weight: 600; }
svg text.recommended { fill: var(--recommended); font-weight: 600; }
.plot { position: relative; height: 214px; margin: 44px 10px 42px 50px; }
.grid { stroke: var(--grid); stroke-width: 1; }
.target { stroke: var(--muted); stroke-width: 1; stroke-dasharray: 2 4; }
path { vector-effect: non-scaling-stroke; }
.line { fill: none; stroke: var(--sent); stroke-width: 2; stroke-linejoin: round; }
.band { fill: var(--sent); fill-opacity: 0.17; stroke: none; }
.line.policy1 { stroke: var(--dead); stroke-dasharray: 7 4; }
.line.policy2 { stroke: var(--deleted); stroke-dasharray: 2 3; }
.line.policy3 { stroke: var(--lapses); stroke-dasharray: 9 3 2 3; }
.line.policy4 { stroke: var(--other); stroke-dasharray: 4 4; }
.dot { fill: var(--card); stroke: var(--sent); stroke-width: 1.3; }
.mark { stroke-width: 1.6; }
.mark.present, .point.present { stroke: var(--present); }
.mark.present { stroke-dasharray: 5 3; }
.mark.recommended, .point.recommended { stroke: var(--recommended); }
.point { stroke-width: 2.4; fill: var(--card); }
.point.recommended { fill: var(--recommended); }
.legend { list-style: none; padding: 0; margin: 0 0 0 50px; display: flex; flex-wrap: wrap; gap: 2px 16px; font-size: 12.5px;
  color: var(--muted); }
.legend li { display: inline-flex; align-items: center; gap: 7px; }
.spark { width: 92px; height: 24px; }
.spark .line { stroke-width: 1.4; }

.strips { margin-top: 8px; }
.strip { display: grid; grid-template-columns: 148px minmax(0, 1fr) 112px; gap: 0 14px; align-items: end; margin-bottom: 7px;
  break-inside: avoid; }
.strip .what { display: flex; justify-content: space-between; gap: 8px; font-size: 13px; line-height: 1.2; }
.strip .what b { font-weight: 600; }
.strip .bed { height: 30px; border-bottom: 1px solid var(--line); }
.strip .bed.axis { height: 18px; border: 0; }
.strip .peak { font-size: 12px; line-height: 1.2; color: var(--muted); white-space: nowrap; }
.bars.sent { fill: var(--sent); }
.bars.deleted { fill: var(--deleted); }
.bars.lapses { fill: var(--lapses); }
.bars.duplicates { fill: var(--duplicates); }
.bars.dead_lettered { fill: var(--dead); }

.stack { height: 20px; margin: 12px 0 10px; }
.stack svg { overflow: hidden; border-radius: 4px; }
.shares { list-style: none; margin: 0; padding: 0; display: grid; grid-template-columns: repeat(auto-fill, minmax(270px, 1fr));
  gap: 3px 20px; font-size: 13.5px; }
.shares li { display: grid; grid-template-columns: 12px 1fr auto 52px; gap: 8px; align-items: center; }
.shares li span:last-child { color: var(--muted); text-align: right; font-size: 12.5px; }
.fill.deleted { fill: var(--deleted); } .fill.released { fill: var(--sent); } .fill.expired { fill: var(--lapses); }
.fill.superseded { fill: var(--present); } .fill.dead_lettered { fill: var(--dead); } .fill.undone { fill: var(--line); }
.fill.removed, .fill.purged { fill: var(--muted); } .fill.open { fill: var(--other); }
.fill.redriven { fill: var(--sent); }

.lives { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr)); gap: 16px; margin-top: 16px; }
.life.card { margin: 0; break-inside: avoid; }
.life .facts { display: flex; flex-wrap: wrap; gap: 0 14px; font-size: 13px; color: var(--muted); margin: 4px 0 8px; }
.life .story { margin-bottom: 14px; }
.lease { margin-bottom: 8px; }
.lease p { font-size: 12.5px; line-height: 1.35; color: var(--muted); margin: 0 0 3px; max-width: none; }
.rail { stroke: var(--grid); stroke-width: 2; }
.bar.held { fill: var(--lapses); }
.bar.held.deleted { fill: var(--deleted); }
.bar.held.released, .bar.held.undone { fill: var(--sent); }
.bar.held.dead_lettered { fill: var(--dead); }
.bar.held.removed { fill: var(--other); }
.bar.held.open { fill: var(--other); }
.bar.granted { fill: var(--deleted); fill-opacity: 0.18; }
.bar.overrun { fill: var(--duplicates); fill-opacity: 0.2; stroke: var(--duplicates); stroke-width: 1.2; stroke-dasharray: 3 2; }
.at { stroke: var(--ink); stroke-width: 1.6; }
.at.extension { stroke: var(--sent); stroke-width: 3; }
.at.first { stroke: var(--muted); stroke-dasharray: 2 2; }
.notes dt { font-weight: 600; margin-top: 14px; }
.notes dd { margin: 2px 0 0; max-width: 76ch; }
footer { padding-top: 40px; padding-bottom: 48px; color: var(--muted); font-size: 13px; }

@media (max-width: 860px) {
  .pair { grid-template-columns: minmax(0, 1fr); }
  .queue .change { margin-left: 0; width: 100%; }
}
@media (max-width: 720px) {
  .strip { grid-template-columns: 1fr auto; }
  .strip .what { justify-content: flex-start; }
  .strip .bed { grid-column: 1 / -1; grid-row: 2; margin-top: 3px; }
  .strip.when > div:not(.bed) { display: none; }
  .strip .peak { text-align: right; }
  .legend { margin-left: 0; }
  .plot { margin-left: 46px; margin-right: 4px; }
  th, th.right { white-space: normal; }
  th, td { padding-left: 7px; padding-right: 7px; }
}
@media screen and (max-width: 1000px) {
  .headline thead { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
  .headline table, .headline tbody { display: block; }
  .headline tr { display: grid; grid-template-columns: repeat(auto-fill, minmax(86px, 1fr)); gap: 5px 10px; padding: 13px 0;
    border-bottom: 1px solid var(--line); }
  .headline tr:last-child { border-bottom: 0; }
  .headline tr.has-types { border-bottom: 0; }
  .headline tr.type { padding: 0 0 12px 14px; }
  .headline td { display: block; border: 0; padding: 0; text-align: left; white-space: normal; }
  .headline tr.type td, .headline tr.type td:first-child { padding: 0; }
  .headline td.who, .headline td.judged { grid-column: 1 / -1; min-width: 0; }
  .headline td[data-label]::before { content: attr(data-label); display: block; font-size: 12px; font-weight: 400;
    color: var(--muted); }
}
@page { margin: 14mm 12mm; }
@media print {
  :root { --ground: #ffffff; --card: #ffffff; --wash: #ffffff; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  body { font-size: 10.5pt; }
  main, header.top, footer { max-width: none; padding-left: 0; padding-right: 0; }
  header.top { padding-top: 0; }
  h2 { break-after: avoid; margin-top: 26px; }
  dt, h3, figcaption, .caption, .queue header { break-after: avoid; }
  a { text-decoration: none; }
  .card { padding: 12px 14px; }
  table { font-size: 8.5pt; }
  th, th.right { font-size: 8pt; white-space: normal; }
  th, td { padding: 4px 5px; }
  td.name { min-width: 0; }
  tr.type td { font-size: 7.5pt; }
  .tag { font-size: 7.5pt; }
  .tiles { grid-template-columns: repeat(6, 1fr); gap: 6px; }
  .tiles li { padding: 8px 9px; }
  .tiles b { font-size: 13pt; }
  .tiles span, .caption, figcaption, .queue .evidence { font-size: 8.5pt; }
  .headline td.who { min-width: 25mm; }
  .headline th, .headline td { padding-left: 4px; padding-right: 4px; }
  .headline table { font-size: 8pt; }
  tr, p, dd, .first, .when-what, .pair, .replay, .tiles { break-inside: avoid; }
  thead { display: table-header-group; }
  .scroll { overflow: visible; }
  .plot { height: 168px; }
  .pair { grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 14px 22px; }
  .lives { grid-template-columns: 1fr 1fr; }
  .queue.card { border-width: 1px 0 0; border-radius: 0; padding: 12px 0 6px; }
  .chip { font-size: 7.5pt; padding: 1px 6px; }
  .queue .change { width: auto; margin-left: auto; }
}
"""
)
