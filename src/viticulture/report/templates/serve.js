// SPDX-License-Identifier: Apache-2.0
// Sends dropped or chosen images at once and draws their predictions. Without this script the form still returns a CSV.
"use strict";
const form = document.querySelector("form"), input = form.querySelector("input[type=file]");
const attention = document.querySelector("#attention"), drop = document.querySelector("#drop");
const state = document.querySelector("#status"), list = document.querySelector("#predictions");
document.querySelector("#address").textContent = location.origin;
const colors = form.dataset.query && JSON.parse(list.dataset.colors);
let turn = 0;

function add(parent, tag, text = "", name = "") {
  const element = parent.appendChild(document.createElement(tag));
  element.textContent = text;
  if (name) element.className = name;
  return element;
}

function report(text, wrong = false) {
  state.textContent = text;
  state.classList.toggle("wrong", wrong);
}

function addImage(parent, source, name) {
  const image = add(parent, "img", "", name);
  image.addEventListener("load", () => image.classList.toggle("small", Math.max(image.naturalWidth, image.naturalHeight) <= 64));
  image.addEventListener("error", () => image.remove());
  image.alt = "";
  image.src = source;
  return image;
}

function addCard(row, file) {
  const card = add(list, "li"), source = URL.createObjectURL(file);
  if (!colors || !row.picture) addImage(card, source, "sent");
  if (row.picture) {
    const image = addImage(card, row.picture, "picture");
    if (colors) makeEnlargeable(card, image);
  }
  add(card, "p", row.name, "file").title = row.name;
  if (row.error) return add(card, "p", row.error, "error");
  if (row.counts && !Object.keys(row.counts).length) {
    return add(card, "p", `Nothing with a score of at least ${row.min_score.toFixed(2)}.`);
  }
  if (row.known === false) add(card, "p", "Unlike the training images: do not rely on the class", "error");
  const table = add(card, "table", "", colors || row.labels ? "several" : "");
  const shares = row.shares ?? row.probabilities, about = ["name", "error", "picture"];
  const numbers = Object.entries(row).filter(([name]) => !about.includes(name));
  const entries = row.counts || shares ? Object.entries(row.counts ?? shares) : numbers;
  if (shares) entries.sort((a, b) => b[1] - a[1]);
  for (const [name, value] of row.probabilities ? entries.slice(0, 5) : entries) {
    if (row.shares && value < 0.005) break;
    const line = add(table, "tr"), cell = add(line, "td", "", row.labels?.includes(name) ? "present" : "");
    if (colors) add(cell, "span", "", "swatch").style.background = colors[name];
    cell.append(name);
    if (shares) add(add(line, "td"), "meter").value = value;
    add(line, "td", shares ? (100 * value).toFixed(1) + " %" : +value.toPrecision(4), "n");
  }
}

function makeEnlargeable(card, image) {
  const toggle = () => image.setAttribute("aria-expanded", card.classList.toggle("wide"));
  image.tabIndex = 0;
  image.setAttribute("role", "button");
  image.setAttribute("aria-label", "enlarge");
  image.addEventListener("click", toggle);
  image.addEventListener("keydown", (event) => event.key === "Enter" && toggle());
}

function* batches() {
  const limits = form.dataset;
  let batch = [], bytes = 0;
  for (const file of input.files) {
    if (batch.length && (batch.length == limits.files || bytes + file.size > limits.bytes)) {
      yield batch;
      batch = [], bytes = 0;
    }
    batch.push(file);
    bytes += file.size;
  }
  if (batch.length) yield batch;
}

async function send(batch, query) {
  const body = new FormData();
  for (const file of batch) body.append("image", file);
  let reply;
  try {
    reply = await fetch("/predict" + query, {method: "POST", body});
  } catch {
    throw Error("No response: is the server running, and is no image larger than it accepts?");
  }
  if (!reply.ok) throw Error((await reply.json().catch(() => ({}))).error ?? `The server refused (${reply.status}).`);
  return reply;
}

async function predict(query, take) {
  const mine = ++turn, total = input.files.length;
  let done = 0;
  try {
    for (const batch of batches()) {
      report(`${done} of ${total} …`);
      const reply = await send(batch, query);
      if (mine !== turn) return false;
      await take(reply, batch);
      done += batch.length;
    }
  } catch (error) {
    if (mine === turn) report(error.message, true);
    return false;
  }
  report(total ? `${total} image${total > 1 ? "s" : ""}` : "");
  return true;
}

function draw() {
  for (const image of list.querySelectorAll(".sent")) URL.revokeObjectURL(image.src);
  list.replaceChildren();
  return predict(form.dataset.query ?? (attention?.checked ? "?draw=1" : ""), async (reply, batch) => {
    (await reply.json()).predictions.forEach((row, i) => addCard(row, batch[i]));
  });
}

async function download(event) {
  event.preventDefault();
  let text = "";
  const whole = await predict("?format=csv", async (reply) => {
    const rows = await reply.text();
    text += text ? rows.slice(rows.indexOf("\n") + 1) : rows;
  });
  if (!whole) return;
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], {type: "text/csv"}));
  link.download = "predictions.csv";
  link.click();
}

input.addEventListener("change", draw);
attention?.addEventListener("change", draw);
form.addEventListener("submit", download);
for (const kind of ["dragenter", "dragover", "dragleave", "drop"]) {
  document.addEventListener(kind, (event) => {
    event.preventDefault();
    drop.classList.toggle("over", kind === "dragenter" || kind === "dragover");
  });
}
document.addEventListener("drop", (event) => {
  if (!event.dataTransfer.files.length) return;
  input.files = event.dataTransfer.files;
  draw();
});
