// SPDX-License-Identifier: Apache-2.0
// Values under the pointer, and tables sorted by a click. The page is complete without it.
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

function inside(svg, event) {
  return new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
}

function watch(svg, move) {
  const cursor = svg.querySelector(".cursor");
  const leave = () => { tip.style.visibility = cursor.style.visibility = "hidden"; };
  const show = (event) => {
    if (move(event, inside(svg, event), cursor)) cursor.style.visibility = "visible";
    else leave();
  };
  svg.addEventListener("pointermove", show);
  svg.addEventListener("pointerdown", show);
  svg.addEventListener("pointerleave", leave);
}

for (const svg of document.querySelectorAll("svg[data-x]")) {
  const [x0, x1, left, right] = svg.dataset.x.split(" ").map(Number);
  const axis = svg.dataset.axis;
  const lines = [...svg.querySelectorAll("[data-points]")].map((g) => [g.dataset.name, JSON.parse(g.dataset.points)]);
  watch(svg, (event, at, cursor) => {
    const x = x0 + ((at.x - left) / (right - left)) * (x1 - x0);
    const near = lines.filter(([, points]) => points.length).map(([name, points]) =>
      [name, points.reduce((best, p) => (Math.abs(p[0] - x) < Math.abs(best[0] - x) ? p : best))]);
    if (!near.length) return false;
    const found = near.reduce((best, n) => (Math.abs(n[1][0] - x) < Math.abs(best[1][0] - x) ? n : best))[1][0];
    cursor.setAttribute("transform", `translate(${left + ((found - x0) / (x1 - x0)) * (right - left)} 0)`);
    say(event, near.map(([name, [px, py]]) => `${name}: ${py} (${axis} ${px})`).join("\n"));
    return true;
  });
}

for (const svg of document.querySelectorAll("svg[data-heat]")) {
  const { cells, rows, columns, sums, box: [left, top, size] } = JSON.parse(svg.dataset.heat);
  const found = new Map(cells.map(([r, c, n]) => [r * columns.length + c, n]));
  watch(svg, (event, at, cursor) => {
    const r = Math.floor((at.y - top) / size), c = Math.floor((at.x - left) / size);
    if (r < 0 || c < 0 || r >= rows.length || c >= columns.length) return false;
    const n = found.get(r * columns.length + c) || 0, share = sums[r] ? ((100 * n) / sums[r]).toFixed(1) + " %" : "n/a";
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
