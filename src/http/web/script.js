// Keeps the live part of a page current, and adds keys. Every page works without it.
"use strict";

const live = document.getElementById("live");
const warnings = document.getElementById("warnings");
const search = document.getElementById("search");
const help = document.getElementById("help");
// How far the clock of this machine is ahead of the instance's, in ms: moments are those of the instance.
let ahead = live ? Date.now() - Date.parse(live.dataset.now) : 0;
let wanted = false;
let loading = false;

// What a part of a page is about: parts of the same parent with the same key are one, wherever they stand.
const keyOf = (node) => node.dataset?.key || node.id;

// Replaces what has changed and keeps everything else: the focus, the selection and the scroll position stay.
function replace(before, after) {
  if (before.isEqualNode(after)) return;
  if (before.nodeType !== after.nodeType || before.nodeName !== after.nodeName) return before.replaceWith(after);
  if (before.nodeType !== Node.ELEMENT_NODE) { before.nodeValue = after.nodeValue; return; }
  for (const { name } of [...before.attributes]) {
    if (!after.hasAttribute(name) && name !== "open") before.removeAttribute(name);
  }
  for (const { name, value } of after.attributes) {
    if (before.getAttribute(name) !== value) before.setAttribute(name, value);
  }
  // Parts that are gone leave first, so that those that stay need not move.
  const keys = new Set([...after.children].map(keyOf));
  const kept = new Map();
  for (const one of [...before.children].filter(keyOf)) {
    if (keys.has(keyOf(one))) kept.set(keyOf(one), one); else one.remove();
  }
  let next = before.firstChild;
  const drop = () => { const gone = next; next = gone.nextSibling; gone.remove(); };
  for (const node of [...after.childNodes]) {
    const key = keyOf(node);
    // Between two keys, parts are paired by their order.
    const same = key ? kept.get(key) : next && !keyOf(next) ? next : null;
    if (!same) { before.insertBefore(node, next); continue; }
    kept.delete(key);
    if (key) while (next && !keyOf(next)) drop();
    if (same === next) next = next.nextSibling; else before.insertBefore(same, next);
    replace(same, node);
  }
  while (next) drop();
}

// Says that the page is of the past, until the next answer takes its place.
function age(why) {
  const text = `This page is from ${document.getElementById("as-of").textContent}; Rollcall ${why}.`;
  if (live.classList.contains("old") && warnings.textContent === text) return;
  const said = document.createElement("p");
  [said.className, said.role, said.textContent] = ["banner serious", "alert", text];
  live.classList.add("old");
  warnings.replaceChildren(said);
}

async function refresh() {
  if (loading || document.hidden) { wanted = true; return; }
  loading = true;
  wanted = false;
  try {
    const answer = await fetch(location.href, { headers: { accept: "text/html" }, signal: AbortSignal.timeout(10000) });
    if (answer.redirected) { location.reload(); return; }
    if (!answer.ok) return age(`answers with an error, ${answer.status}`);
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const fresh = page.getElementById("live");
    if (!fresh) return age("does not answer");
    const focused = document.activeElement;
    replace(live, document.adoptNode(fresh));
    ahead = Date.now() - Date.parse(live.dataset.now);
    // A part that has moved has lost the focus.
    if (focused.isConnected) focused.focus({ preventScroll: true });
    remember();
    document.title = page.title;
    const [shown, now] = [document.getElementById("as-of"), page.getElementById("as-of")];
    if (shown && now) replace(shown, document.adoptNode(now));
  } catch {
    age("does not answer");
  } finally {
    loading = false;
    if (wanted) setTimeout(refresh, 1000);
  }
}

// A browser has six connections for a server, and a stream takes one: only the page in view follows the fleet.
let stream = null;
function follow() {
  if (stream || document.hidden) return;
  let first = !wanted;
  if (wanted) refresh();
  stream = new EventSource(live.dataset.stream);
  stream.addEventListener("summary", () => { if (first) first = false; else refresh(); });
  stream.addEventListener("transition", () => refresh());
  stream.addEventListener("reset", () => refresh());
  stream.addEventListener("error", () => refresh());
}
function leave() {
  if (!stream) return;
  stream.close();
  stream = null;
  wanted = true;
}

if (live?.dataset.stream) {
  follow();
  // Times grow old while nothing happens.
  setInterval(refresh, 15000);
  document.addEventListener("visibilitychange", () => { if (document.hidden) leave(); else follow(); });
  addEventListener("pagehide", leave);
  addEventListener("pageshow", follow);
}

// Fills the fields that the operator has filled before.
function remember() {
  for (const input of document.querySelectorAll("[data-remember]:placeholder-shown")) {
    input.value ||= localStorage.getItem("rollcall-" + input.dataset.remember) ?? "";
  }
}
remember();
document.addEventListener("submit", ({ target }) => {
  for (const input of target.querySelectorAll("[data-remember]")) {
    localStorage.setItem("rollcall-" + input.dataset.remember, input.value);
  }
});

// A span in its two largest units, as the server writes it.
function span(seconds) {
  if (seconds < 60) return `${seconds}s`;
  const units = [[86400, "d", 3600, "h"], [3600, "h", 60, "m"], [60, "m", 1, "s"]];
  const [large, name, small, rest] = units.find(([length]) => seconds >= length);
  const left = Math.floor((seconds % large) / small);
  return Math.floor(seconds / large) + name + (left ? ` ${left}${rest}` : "");
}

// What follows a countdown is for the instance to say: a unit that was heard meanwhile has another deadline.
let asked = 0;
setInterval(() => {
  let isOver = false;
  const now = Date.now() - ahead;
  for (const time of document.querySelectorAll("[data-countdown]")) {
    const left = Math.floor((Date.parse(time.dateTime) - now) / 1000);
    if (left >= 0) time.textContent = span(left);
    isOver ||= left < 1;
  }
  // A text that stays the same is left alone: it may be selected.
  for (const time of document.querySelectorAll("[data-since]")) {
    const text = span(Math.max(0, Math.floor((now - Date.parse(time.dateTime)) / 1000))) + time.dataset.since;
    if (time.textContent !== text) time.textContent = text;
  }
  if (isOver && live?.dataset.stream && performance.now() - asked > 5000) {
    asked = performance.now();
    refresh();
  }
}, 1000);

const pages = {
  f: "", n: "incidents", r: "records", d: "deliveries", s: "silences", m: "timers", p: "reports", t: "strangers", i: "instances", c: "configuration",
  a: "about",
};
let before = "";
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select")) return;
  const home = document.querySelector(".brand")?.getAttribute("href") ?? "/";
  if (event.key === "/" && search) { event.preventDefault(); search.focus(); }
  else if (event.key === "?" && help) help.showModal();
  else if (before === "g" && event.key in pages) location.href = home + pages[event.key];
  before = event.key;
});
