// The report's style sheet: system fonts, light or dark as the system is set, readable on a phone and on paper.
#pragma once

inline constexpr const char* report_style = R"css(
:root {
  color-scheme: light dark;
  --page: #f6f7f9; --card: #ffffff; --line: #e3e6ea; --grid: #eceef1;
  --text: #1b1f24; --soft: #667080; --code: #f6f7f9;
  --train: #2563d9; --val: #d9480f; --speed: #0b8a6a; --other: #7a52cc; --bad: #c92a2a;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #0e1116; --card: #161a21; --line: #272d37; --grid: #232933;
    --text: #e4e7ec; --soft: #8e98a8; --code: #10141a;
    --train: #6ea2ff; --val: #ff9a57; --speed: #3fcfa5; --other: #b197fc; --bad: #ff8787;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body {
  margin: 0; background: var(--page); color: var(--text);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "Liberation Sans", Arial, sans-serif;
  font-variant-numeric: tabular-nums;
}
main { max-width: 1040px; margin: 0 auto; padding: 40px 24px 56px; display: grid; gap: 16px; grid-template-columns: minmax(0, 1fr); }
h1 { margin: 0 0 4px; font-size: 27px; line-height: 1.25; font-weight: 650; letter-spacing: -0.015em; overflow-wrap: anywhere; }
h2 { margin: 0; font-size: 15px; font-weight: 650; }
h2 small { margin-left: 4px; font-size: 13px; font-weight: 400; color: var(--soft); }
.card { margin: 0; padding: 18px 20px; background: var(--card); border: 1px solid var(--line); border-radius: 12px; }
.notice { margin: 0; padding: 12px 20px; border: 1px solid var(--bad); border-radius: 12px; color: var(--bad); }

.fact { margin: -12px 0 0; color: var(--soft); }
.fact b { color: var(--text); font-weight: 500; }
.facts { margin: 0; display: grid; gap: 12px; grid-template-columns: repeat(var(--columns), minmax(0, 1fr)); }
.facts .card { padding: 14px 16px; display: flex; flex-direction: column; gap: 2px; }
.facts dt { font-size: 13px; color: var(--soft); }
.facts dd { margin: 0; font-size: 24px; line-height: 1.25; font-weight: 600; letter-spacing: -0.02em; overflow-wrap: anywhere; }

.row { display: grid; gap: 16px; grid-template-columns: repeat(3, minmax(0, 1fr)); }
figcaption { display: flex; flex-wrap: wrap; gap: 4px 20px; justify-content: space-between; align-items: baseline; margin-bottom: 14px; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; margin: 0; padding: 0; list-style: none; font-size: 13px; color: var(--soft); }
.legend b { color: var(--text); font-weight: 600; }
.legend li::before, .key::before { content: ""; display: inline-block; width: var(--key, 14px); height: 3px; margin-right: 7px; border-radius: 2px; vertical-align: 3px; background: var(--pattern, var(--ink)); }
.train { --ink: var(--train); } .val { --ink: var(--val); } .speed { --ink: var(--speed); } .other { --ink: var(--other); }
.plot { position: relative; height: 340px; margin: 0 8px 26px 40px; border-bottom: 1px solid var(--line); }
.row .plot { height: 150px; }
.plot svg { position: absolute; inset: 0; width: 100%; height: 100%; overflow: visible; clip-path: inset(-6px -6px -1px); }
.plot path { fill: none; vector-effect: non-scaling-stroke; stroke: var(--ink); stroke-linejoin: round; stroke-linecap: round; }
.plot .grid { stroke: var(--grid); stroke-width: 1; }
.plot .thin { stroke-width: 1; stroke-opacity: 0.32; }
.plot .line { stroke-width: 2; }
.plot .dot { stroke-width: 7; pointer-events: stroke; }
.plot .dot:hover { stroke-width: 11; }
.plot span { position: absolute; font-size: 12px; line-height: 16px; color: var(--soft); white-space: nowrap; }
.plot .y { right: 100%; margin: -8px 8px 0 0; }
.plot .x { top: 100%; margin-top: 6px; transform: translateX(-50%); }
.axis { margin: -4px 8px -6px 40px; text-align: center; font-size: 12px; color: var(--soft); }
.empty { margin: 0; padding: 24px 0; text-align: center; color: var(--soft); }

.sample + .sample { margin-top: 12px; }
.samples h2, .options h2 { margin-bottom: 12px; }
summary { cursor: pointer; font-size: 13px; color: var(--soft); }
.sample summary:hover { color: var(--text); }
pre {
  margin: 8px 0 0; padding: 14px 16px; background: var(--code); border: 1px solid var(--line); border-radius: 8px;
  font: 13px/1.55 ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", "Liberation Mono", monospace;
  white-space: pre-wrap; overflow-wrap: anywhere;
}
.options dl { margin: 0; columns: 3 260px; column-gap: 32px; }
.options dl div { display: flex; gap: 16px; justify-content: space-between; padding: 5px 0; border-bottom: 1px solid var(--grid); break-inside: avoid; font-size: 13px; }
.options dt { color: var(--soft); white-space: nowrap; }
.options dd { margin: 0; text-align: right; overflow-wrap: anywhere; }

.row .odd { display: none; }

@media (max-width: 800px) {
  .row { grid-template-columns: minmax(0, 1fr); }
  .facts { grid-template-columns: repeat(3, minmax(0, 1fr)); }
}
@media (max-width: 560px) {
  main { padding: 24px 12px 32px; gap: 12px; }
  h1 { font-size: 22px; }
  .facts { gap: 8px; grid-template-columns: repeat(2, minmax(0, 1fr)); }
  .facts .card:last-child:nth-child(odd) { grid-column: span 2; }
  .facts dd { font-size: 20px; }
  .card { padding: 14px; }
  .plot { height: 250px; }
  .row { gap: 12px; }
  .plot .odd { display: none; }
  pre { font-size: 12px; padding: 12px; }
}
@media print {
  body { background: none; font-size: 12px; print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  main { display: block; max-width: none; padding: 0; }
  main > :is(.facts, .card, .row, .notice, .fact) { margin-bottom: 12px; }
  .fact { margin-top: 0; }
  .facts { grid-template-columns: repeat(var(--columns), minmax(0, 1fr)); }
  .facts dd { font-size: 17px; }
  .row { grid-template-columns: repeat(3, minmax(0, 1fr)); gap: 12px; }
  .plot { height: 260px; }
  .card { padding: 12px; }
  .chart, .facts, .row { break-inside: avoid; }
}
)css";

// What the page of the `report` command has besides: the choice of the axis, tables, and 7 colors times 3 kinds of
// lines.
inline constexpr const char* comparison_style = R"css(
:root { --key: 26px; --run0: #2563d9; --run1: #d9480f; --run2: #0b8a6a; --run3: #8b3fd6; --run4: #a87f00; --run5: #d6337c; --run6: #5b6470; }
@media (prefers-color-scheme: dark) {
  :root { --run0: #6ea2ff; --run1: #ff9a57; --run2: #3fcfa5; --run3: #c08cff; --run4: #e3c044; --run5: #ff7eb6; --run6: #aab4c3; }
}
.run0 { --ink: var(--run0); } .run1 { --ink: var(--run1); } .run2 { --ink: var(--run2); } .run3 { --ink: var(--run3); }
.run4 { --ink: var(--run4); } .run5 { --ink: var(--run5); } .run6 { --ink: var(--run6); }
.dash1 { --dash: 9 7; --pattern: repeating-linear-gradient(90deg, var(--ink) 0 6px, transparent 6px 10px); }
.dash2 { --dash: 0.1 5; --pattern: repeating-linear-gradient(90deg, var(--ink) 0 3px, transparent 3px 6px); }
.plot .line { stroke-dasharray: var(--dash, none); }

.curves { display: flex; flex-wrap: wrap; align-items: center; gap: 12px 8px; }
.curves > span { color: var(--soft); margin-right: 4px; }
.curves > input { position: absolute; opacity: 0; }
.curves > label { padding: 3px 14px; border: 1px solid var(--line); border-radius: 99px; background: var(--card); cursor: pointer; }
.curves > input:checked + label { color: var(--page); background: var(--text); border-color: var(--text); }
.curves > input:focus-visible + label { outline: 2px solid var(--train); outline-offset: 2px; }
.curves > div { display: none; flex-basis: 100%; min-width: 0; gap: 16px; grid-template-columns: minmax(0, 1fr); }
#steps:checked ~ .by-steps, #tokens:checked ~ .by-tokens, #time:checked ~ .by-time { display: grid; }

.wide { overflow-x: auto; margin-top: 10px; }
table { border-collapse: collapse; width: 100%; font-size: 13px; }
th, td { padding: 6px 0 6px 20px; text-align: right; border-bottom: 1px solid var(--grid); white-space: nowrap; }
th { font-weight: 400; color: var(--soft); }
th:first-child, td:first-child { padding-left: 0; text-align: left; }
td small { color: var(--soft); }
.key label { cursor: pointer; }
.key input { position: absolute; opacity: 0; }
.key:has(input:not(:checked)) { opacity: 0.4; }
.key:has(input:focus-visible) { outline: 2px solid var(--train); }
@media print { .curves > span, .curves > label { display: none; } .curves .chart { margin-bottom: 12px; } }
)css";
