// SPDX-License-Identifier: Apache-2.0
// What a point means under the pointer, and two methods compared class by class.
for (const mark of document.querySelectorAll("[data-tip]")) {
  const show = (event) => say(event, mark.dataset.tip);
  mark.addEventListener("pointermove", show);
  mark.addEventListener("pointerdown", show);
  mark.addEventListener("pointerleave", () => { tip.style.visibility = "hidden"; });
}

for (const chooser of document.querySelectorAll("[data-compare]")) {
  const { classes, images, names, recall, shown } = JSON.parse(chooser.dataset.compare);
  const table = chooser.parentElement.querySelector("table.compare"), selects = [...chooser.querySelectorAll("select")];
  const cell = (row, words, kind) => {
    const made = row.insertCell();
    made.textContent = words;
    made.className = kind;
    return made;
  };
  const draw = () => {
    const [one, other] = selects.map((select) => Number(select.value)), heads = table.tHead.rows[0].cells;
    heads[2].textContent = names[one];
    heads[3].textContent = names[other];
    const gaps = classes.map((_, c) => recall[one][c] - recall[other][c]);
    const order = classes.map((_, c) => c).sort((a, b) => Math.abs(gaps[b]) - Math.abs(gaps[a]) || a - b);
    const body = document.createElement("tbody");
    for (const c of order) {
      const row = body.insertRow();
      cell(row, classes[c], "");
      cell(row, images[c], "n");
      cell(row, recall[one][c].toFixed(1), "n");
      cell(row, recall[other][c].toFixed(1), "n");
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
