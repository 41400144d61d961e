"""The style sheet of report.html: light and dark by the reader's setting, no file or font from anywhere else."""

CSS = """
:root { color-scheme: light dark; --ink:#16202c; --muted:#5a6b7d; --grid:#dde5ec; --panel:#ffffff; --page:#f3f6f9;
  --learn:#e07b39; --ice:#a9d8f0; --second:#2c74b8; --good:#2b9a72; --bad:#cc3d45; --frost-line:#5aa9d3;
  --shadow:0 1px 2px rgba(20,40,60,.06),0 4px 16px rgba(20,40,60,.05); }
@media (prefers-color-scheme: dark) { :root { --ink:#e7edf3; --muted:#9aabba; --grid:#2b3846; --panel:#18222d; --page:#0f161d;
  --learn:#f0995c; --ice:#2f6d92; --second:#6fb4ee; --good:#4cc398; --bad:#f0717a; --frost-line:#7cc4ea; --shadow:none; } }
* { box-sizing: border-box; }
body { margin:0; background:var(--page); color:var(--ink); font:15px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif; }
main, header, footer { max-width:1120px; margin:0 auto; padding:0 20px; }
header { padding-top:34px; padding-bottom:6px; }
h1 { font-size:1.9rem; line-height:1.2; margin:0 0 2px; letter-spacing:-.02em; }
h2 { font-size:1.15rem; margin:0 0 4px; letter-spacing:-.01em; }
p.caption { color:var(--muted); margin:0 0 10px; }
.badge { display:inline-block; padding:1px 11px; border-radius:99px; font-size:.85rem; font-weight:600; vertical-align:.3em;
  margin-left:8px; border:1.5px solid currentColor; }
.badge.completed { color:var(--good); } .badge.failed { color:var(--bad); } .badge.other { color:var(--second); }
.numbers { display:grid; grid-template-columns:repeat(auto-fit,minmax(128px,1fr)); gap:12px; margin:18px 0; padding:0; }
.numbers div, section { background:var(--panel); border:1px solid var(--grid); border-radius:12px; box-shadow:var(--shadow); }
.numbers div { padding:11px 15px; } .numbers dt { color:var(--muted); font-size:.82rem; }
.numbers dd { margin:0; font-size:1.28rem; font-weight:650; font-variant-numeric:tabular-nums; letter-spacing:-.01em;
  overflow-wrap:anywhere; }
section { padding:18px 20px; margin:0 0 16px; }
section svg { display:block; width:100%; height:auto; }
.pair { display:grid; grid-template-columns:repeat(auto-fit,minmax(min(100%,470px),1fr)); gap:16px; margin-bottom:16px; }
.pair section { margin:0; }
.scroll { overflow-x:auto; max-height:460px; overflow-y:auto; }
table { border-collapse:collapse; width:100%; font-size:.88rem; font-variant-numeric:tabular-nums; }
th { text-align:left; color:var(--muted); font-weight:600; position:sticky; top:0; background:var(--panel); white-space:nowrap; }
th, td { padding:5px 12px 5px 0; border-bottom:1px solid var(--grid); vertical-align:top; }
td.number { text-align:right; white-space:nowrap; } td.reason { min-width:16em; } tr:last-child td { border-bottom:0; }
.kind { font-weight:600; } .kind.failure, .kind.guard, .kind.decision_void { color:var(--bad); }
.kind.freeze { color:var(--second); }
.kind.reshape { color:var(--learn); } .kind.join { color:var(--good); }
details > summary { cursor:pointer; font-weight:650; font-size:1.05rem; }
pre { overflow:auto; max-height:480px; font:12.5px/1.5 ui-monospace,Menlo,Consolas,monospace; margin:10px 0 0; }
code { font:12.5px ui-monospace,Menlo,Consolas,monospace; overflow-wrap:anywhere; }
.controls { display:flex; gap:8px; align-items:center; margin:6px 0 10px; flex-wrap:wrap; }
.controls input { flex:1 1 260px; accent-color:var(--second); height:26px; }
.controls button { font:inherit; font-size:.88rem; padding:3px 12px; border-radius:8px; border:1px solid var(--grid);
  background:var(--page); color:var(--ink); cursor:pointer; }
.controls button:hover { border-color:var(--second); }
.controls button:focus-visible, .controls input:focus-visible { outline:2px solid var(--second); outline-offset:2px; }
.readout { display:flex; flex-wrap:wrap; gap:2px 22px; color:var(--muted); font-variant-numeric:tabular-nums; }
.readout b { color:var(--ink); font-weight:650; }
.ticks { position:relative; height:10px; margin:-6px 0 8px; }
.ticks i { position:absolute; width:2px; height:9px; border-radius:1px; background:var(--second); }
.ticks i.failure, .ticks i.guard { background:var(--bad); } .ticks i.reshape { background:var(--learn); }
.news { min-height:1.6em; color:var(--muted); } .news b { color:var(--ink); }
.legend { display:flex; gap:18px; color:var(--muted); font-size:.85rem; flex-wrap:wrap; margin-top:8px; }
.legend span::before { content:"";
  display:inline-block; width:13px; height:13px; border-radius:3px; margin-right:6px; vertical-align:-2px;
  border:1.4px solid var(--second); background:var(--swatch); }
footer { color:var(--muted); font-size:.85rem; padding-top:4px; padding-bottom:40px; }
@media print { body { background:none; }
  section { break-inside:avoid; box-shadow:none; } .controls { display:none; } .scroll { max-height:none; } }
"""
