// Keeps the live part of a page current, and adds keys. Every page works without it.
"use strict";

const live = document.getElementById("live");
const search = document.getElementById("search");
const help = document.getElementById("help");
let wanted = false;
let loading = false;

// Replaces what has changed and keeps everything else: the focus, the selection and the scroll position stay.
function replace(before, after) {
  if (before.isEqualNode(after)) return;
  const isOther = before.nodeType !== after.nodeType || before.nodeName !== after.nodeName || before.id !== after.id;
  if (isOther) return before.replaceWith(after);
  if (before.nodeType !== Node.ELEMENT_NODE) { before.nodeValue = after.nodeValue; return; }
  for (const { name } of [...before.attributes]) {
    if (!after.hasAttribute(name) && name !== "open") before.removeAttribute(name);
  }
  for (const { name, value } of after.attributes) {
    if (before.getAttribute(name) !== value) before.setAttribute(name, value);
  }
  const [old, fresh] = [[...before.childNodes], [...after.childNodes]];
  fresh.forEach((node, at) => (at < old.length ? replace(old[at], node) : before.append(node)));
  old.slice(fresh.length).forEach((node) => node.remove());
}

async function refresh() {
  if (loading || document.hidden) { wanted = true; return; }
  loading = true;
  wanted = false;
  try {
    const answer = await fetch(location.href, { headers: { accept: "text/html" } });
    if (answer.redirected) { location.reload(); return; }
    if (!answer.ok) return;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const fresh = page.getElementById("live");
    if (!fresh) return;
    replace(live, document.adoptNode(fresh));
    remember();
    document.title = page.title;
    const [shown, now] = [document.getElementById("as-of"), page.getElementById("as-of")];
    if (shown && now) replace(shown, document.adoptNode(now));
  } catch {
    // The stream says when the server is there again.
  } finally {
    loading = false;
    if (wanted) setTimeout(refresh, 1000);
  }
}

// A browser has six connections for a server, and a stream takes one: only the page in view follows the fleet.
let stream = null;
function follow() {
  if (stream || document.hidden) return;
  stream = new EventSource(live.dataset.stream);
  let first = !wanted;
  stream.addEventListener("summary", () => { if (first) first = false; else refresh(); });
  stream.addEventListener("reset", () => refresh());
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

setInterval(() => {
  for (const time of document.querySelectorAll("[data-countdown]")) {
    const left = Math.floor((Date.parse(time.dateTime) - Date.now()) / 1000);
    if (left >= 0) time.textContent = span(left);
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
