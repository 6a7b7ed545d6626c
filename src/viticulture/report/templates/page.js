// SPDX-License-Identifier: Apache-2.0
// Values under the pointer, tables sorted by a click, two methods compared class by class. The page is complete without.
"use strict";
const tip = document.body.appendChild(document.createElement("div"));
tip.id = "tip";

function say(event, words) {
  tip.textContent = words;
  tip.style.visibility = "visible";
  const box = tip.getBoundingClientRect(), x = event.clientX + 14, y = event.clientY + 14;
  tip.style.left = Math.max(4, Math.min(x, innerWidth - box.width - 8)) + "px";
  tip.style.top = (y + box.height > innerHeight ? event.clientY - box.height - 10 : y) + "px";
}

function watch(target, move, leave) {
  target.addEventListener("pointermove", move);
  target.addEventListener("pointerdown", move);
  target.addEventListener("pointerleave", () => { tip.style.visibility = "hidden"; leave(); });
}

for (const title of document.querySelectorAll("svg title")) {
  const mark = title.parentNode, words = title.textContent;
  title.remove();
  mark.dataset.tip = words;
  watch(mark, (event) => say(event, words), () => {});
}

function follow(svg, move) {
  const cursor = svg.querySelector(".cursor"), hide = () => { tip.style.visibility = cursor.style.visibility = "hidden"; };
  const at = (event) => new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
  watch(svg, (event) => { if (move(event, at(event), cursor)) cursor.style.visibility = "visible"; else hide(); }, hide);
}

for (const svg of document.querySelectorAll("svg[data-x]")) {
  const [x0, x1, left, right] = svg.dataset.x.split(" ").map(Number);
  const axis = svg.dataset.axis;
  const lines = [...svg.querySelectorAll("[data-points]")].map((g) => [g.dataset.name, JSON.parse(g.dataset.points)]);
  if (lines.length) follow(svg, (event, at, cursor) => {
    const x = x0 + ((at.x - left) / (right - left)) * (x1 - x0);
    const near = lines.filter(([, points]) => points.length).map(([name, points]) =>
      [name, points.reduce((best, p) => (Math.abs(p[0] - x) < Math.abs(best[0] - x) ? p : best))]);
    if (!near.length) return false;
    const nearest = near.reduce((best, n) => (Math.abs(n[1][0] - x) < Math.abs(best[1][0] - x) ? n : best))[1][0];
    cursor.setAttribute("transform", `translate(${left + ((nearest - x0) / (x1 - x0)) * (right - left)} 0)`);
    say(event, near.map(([name, [px, py]]) => `${name}: ${py} (${axis} ${px})`).join("\n"));
    return true;
  });
}

for (const svg of document.querySelectorAll("svg[data-heat]")) {
  const { cells, rows, columns, sums, box: [left, top, size] } = JSON.parse(svg.dataset.heat);
  const counts = new Map(cells.map(([r, c, n]) => [r * columns.length + c, n]));
  follow(svg, (event, at, cursor) => {
    const r = Math.floor((at.y - top) / size), c = Math.floor((at.x - left) / size);
    if (r < 0 || c < 0 || r >= rows.length || c >= columns.length) return false;
    const n = counts.get(r * columns.length + c) || 0, share = sums[r] ? ((100 * n) / sums[r]).toFixed(1) + " %" : "n/a";
    cursor.setAttribute("transform", `translate(${left + c * size} ${top + r * size})`);
    say(event, `${rows[r]} → ${columns[c]}\n${n} of ${sums[r]} (${share})`);
    return true;
  });
}

for (const table of document.querySelectorAll("table[data-sortable]")) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  const value = (row, i) => {
    const cell = row.cells[i];
    return "v" in cell.dataset ? Number(cell.dataset.v) : heads[i].className === "n" ? null : cell.textContent;
  };
  heads.forEach((head, i) => head.firstChild.addEventListener("click", () => {
    const down = head.ariaSort ? head.ariaSort === "ascending" : head.className === "n";
    heads.forEach((other) => other.removeAttribute("aria-sort"));
    head.ariaSort = down ? "descending" : "ascending";
    const order = (a, b) => (typeof a === "number" ? a - b : a.localeCompare(b, undefined, { numeric: true }));
    const rows = [...body.rows].map((row) => [value(row, i), row]);
    rows.sort(([a], [b]) => (a === null || b === null ? (a === null) - (b === null) : down ? order(b, a) : order(a, b)));
    body.append(...rows.map(([, row]) => row));
  }));
}

for (const chooser of document.querySelectorAll("[data-compare]")) {
  const { classes, images, names, recall, shown } = JSON.parse(chooser.dataset.compare);
  const table = chooser.parentElement.querySelector("table.compare"), selects = [...chooser.querySelectorAll("select")];
  const cell = (row, words, kind) => Object.assign(row.insertCell(), { textContent: words, className: kind });
  const draw = () => {
    const [one, other] = selects.map((select) => Number(select.value)), heads = table.tHead.rows[0].cells;
    [heads[2].textContent, heads[3].textContent] = [names[one], names[other]];
    const gaps = classes.map((_, c) => recall[one][c] - recall[other][c]);
    const order = classes.map((_, c) => c).sort((a, b) => Math.abs(gaps[b]) - Math.abs(gaps[a]) || a - b);
    const body = document.createElement("tbody");
    for (const c of order) {
      const row = body.insertRow();
      cell(row, classes[c], "");
      for (const value of [images[c], recall[one][c].toFixed(1), recall[other][c].toFixed(1)]) cell(row, value, "n");
      const last = cell(row, (gaps[c] < 0 ? "-" : "+") + Math.abs(gaps[c]).toFixed(1), "n diff " + (gaps[c] < 0 ? "less" : "more"));
      last.style.setProperty("--gap", Math.abs(gaps[c]) / 2 + "%");
    }
    table.tBodies[0].replaceWith(body);
  };
  selects.forEach((select, i) => {
    select.append(...names.map((name, n) => new Option(name, n, n === shown[i], n === shown[i])));
    select.addEventListener("change", draw);
  });
  chooser.hidden = false;
}
