// SPDX-License-Identifier: Apache-2.0
// Images that are dropped or chosen are sent at once, and their answers drawn. Without this the form still gives a CSV.
"use strict";
const form = document.querySelector("form"), input = form.querySelector("input[type=file]"), look = document.querySelector("#look");
const drop = document.querySelector("#drop"), state = document.querySelector("#status"), list = document.querySelector("#answers");
document.querySelector("#address").textContent = location.origin;
const colors = form.dataset.query && JSON.parse(list.dataset.colors);
let turn = 0;

function made(parent, tag, words = "", name = "") {
  const element = parent.appendChild(document.createElement(tag));
  element.textContent = words;
  if (name) element.className = name;
  return element;
}

function tell(words, wrong = false) {
  state.textContent = words;
  state.classList.toggle("wrong", wrong);
}

function picture(parent, source, name) {
  const image = made(parent, "img", "", name);
  image.addEventListener("load", () => image.classList.toggle("small", Math.max(image.naturalWidth, image.naturalHeight) <= 64));
  image.addEventListener("error", () => image.remove());
  image.alt = "";
  image.src = source;
}

function draw(answer, file) {
  const card = made(list, "li"), source = URL.createObjectURL(file);
  if (!colors || !answer.look) picture(card, source, "sent");
  if (answer.look) picture(card, answer.look, "seen");
  if (colors && answer.look) enlarged(card, card.querySelector(".seen"));
  made(card, "p", answer.name, "file").title = answer.name;
  if (answer.error) return made(card, "p", answer.error, "error");
  if (colors) return answer.objects ? counted(card, answer) : shared(card, answer);
  const table = made(card, "table", "", answer.labels ? "several" : "");
  const first = Object.entries(answer.probabilities).sort((a, b) => b[1] - a[1]).slice(0, 5);
  for (const [name, probability] of first) {
    const row = made(table, "tr");
    made(row, "td", name, answer.labels?.includes(name) ? "shown" : "");
    made(made(row, "td"), "meter").value = probability;
    made(row, "td", (100 * probability).toFixed(1) + " %", "n");
  }
}

function enlarged(card, image) {
  const turned = () => image.setAttribute("aria-expanded", card.classList.toggle("wide"));
  image.tabIndex = 0;
  image.setAttribute("role", "button");
  image.setAttribute("aria-label", "enlarge");
  image.addEventListener("click", turned);
  image.addEventListener("keydown", (event) => event.key === "Enter" && turned());
}

function named(row, name) {
  const cell = made(row, "td");
  made(cell, "span", "", "swatch").style.background = colors[name];
  cell.append(name);
}

function counted(card, answer) {
  const counts = Object.entries(answer.counts);
  if (!counts.length) return made(card, "p", `Nothing with a score of at least ${answer.threshold.toFixed(2)}.`);
  const table = made(card, "table", "", "several");
  for (const [name, number] of counts) {
    const row = made(table, "tr");
    named(row, name);
    made(row, "td", number, "n");
  }
}

function shared(card, answer) {
  const table = made(card, "table", "", "several");
  for (const [name, share] of Object.entries(answer.shares).sort((a, b) => b[1] - a[1])) {
    if (share < 0.005) break;
    const row = made(table, "tr");
    named(row, name);
    made(made(row, "td"), "meter").value = share;
    made(row, "td", (100 * share).toFixed(1) + " %", "n");
  }
}

function* parts() {
  const most = form.dataset;
  let part = [], bytes = 0;
  for (const file of input.files) {
    if (part.length && (part.length == most.files || bytes + file.size > most.bytes)) {
      yield part;
      part = [], bytes = 0;
    }
    part.push(file);
    bytes += file.size;
  }
  if (part.length) yield part;
}

async function send(part, query) {
  const body = new FormData();
  for (const file of part) body.append("image", file);
  let reply;
  try {
    reply = await fetch("/predict" + query, {method: "POST", body});
  } catch {
    throw Error("No answer: does the server still run, and is no image larger than it takes?");
  }
  if (!reply.ok) throw Error((await reply.json().catch(() => ({}))).error ?? `The server refused (${reply.status}).`);
  return reply;
}

async function ask(query, take) {
  const mine = ++turn, every = input.files.length;
  let done = 0;
  try {
    for (const part of parts()) {
      tell(`${done} of ${every} …`);
      const reply = await send(part, query);
      if (mine !== turn) return false;
      await take(reply, part);
      done += part.length;
    }
  } catch (error) {
    if (mine === turn) tell(error.message, true);
    return false;
  }
  tell(every ? `${every} image${every > 1 ? "s" : ""}` : "");
  return true;
}

function show() {
  for (const image of list.querySelectorAll(".sent")) URL.revokeObjectURL(image.src);
  list.replaceChildren();
  return ask(form.dataset.query ?? (look?.checked ? "?look=1" : ""), async (reply, part) => {
    (await reply.json()).predictions.forEach((answer, i) => draw(answer, part[i]));
  });
}

async function save(event) {
  event.preventDefault();
  let text = "";
  const whole = await ask("?format=csv", async (reply) => {
    const rows = await reply.text();
    text += text ? rows.slice(rows.indexOf("\n") + 1) : rows;
  });
  if (!whole) return;
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], {type: "text/csv"}));
  link.download = "predictions.csv";
  link.click();
}

input.addEventListener("change", show);
look?.addEventListener("change", show);
form.addEventListener("submit", save);
for (const kind of ["dragenter", "dragover", "dragleave", "drop"]) {
  document.addEventListener(kind, (event) => {
    event.preventDefault();
    drop.classList.toggle("over", kind === "dragenter" || kind === "dragover");
  });
}
document.addEventListener("drop", (event) => {
  if (!event.dataTransfer.files.length) return;
  input.files = event.dataTransfer.files;
  show();
});
