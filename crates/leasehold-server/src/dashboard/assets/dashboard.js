// Keeps an open page up to date, shows actions in a dialog, and adds keyboard shortcuts. Without this
// script every page works; it only does not change by itself.

const main = () => document.getElementById("main");
const live = document.getElementById("live");
const statusLine = document.getElementById("status");
const dialog = document.getElementById("dialog");
const prefix = document.body.dataset.prefix;

// Times. Everything is computed from the time of the store when the page was read, and from a clock of
// the browser that only measures durations: a wrong date of the browser changes nothing.

let readAt = performance.now();
let storeTime = Number(main().dataset.now ?? 0) / 1000;
const now = () => storeTime + (performance.now() - readAt);

const units = [["d", 86400], ["h", 3600], ["m", 60], ["s", 1]];

function formatAge(milliseconds) {
  let rest = Math.max(0, Math.floor(milliseconds / 1000));
  if (rest === 0) return "0s";
  const parts = [];
  for (const [name, size] of units) {
    const count = Math.floor(rest / size);
    rest %= size;
    if (parts.length < 2 && (count > 0 || parts.length > 0)) parts.push(count > 0 ? `${count}${name}` : "");
  }
  return parts.join("");
}

function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function tick() {
  if (!storeTime) return;
  const time = now();
  for (const element of document.querySelectorAll("[data-since]")) {
    setText(element, formatAge(time - Number(element.dataset.since) / 1000));
  }
  for (const element of document.querySelectorAll("[data-until]")) {
    const left = Number(element.dataset.until) / 1000 - time;
    if (element.localName === "progress") {
      const ttl = Number(element.dataset.ttl);
      element.value = Math.max(0, Math.min(left, ttl));
      element.toggleAttribute("data-low", left < ttl / 4);
    } else {
      setText(element, formatAge(left));
    }
  }
}

// Replacement of the content. Elements are matched by their id, or by their position, and only what
// differs is changed: focus, selection, scroll positions and open details stay as they are.

function morph(from, to) {
  if (from.nodeType !== to.nodeType || from.nodeName !== to.nodeName) return from.replaceWith(to);
  if (from.nodeType === Node.TEXT_NODE) {
    if (from.data !== to.data) from.data = to.data;
    return;
  }
  if (from.nodeType !== Node.ELEMENT_NODE || from.isEqualNode(to)) return;
  for (const { name } of [...from.attributes]) {
    const isState = (name === "open" && from.localName === "details") || name === "data-low";
    if (!to.hasAttribute(name) && !isState) from.removeAttribute(name);
  }
  for (const { name, value } of to.attributes) {
    if (name === "open" && from.localName === "details") continue;
    if (from.getAttribute(name) !== value) from.setAttribute(name, value);
  }
  if (from.localName === "input" || from.localName === "textarea") return;
  const byId = new Map([...from.children].filter((child) => child.id).map((child) => [child.id, child]));
  const wanted = new Set([...to.children].map((child) => child.id).filter(Boolean));
  let current = from.firstChild;
  for (const next of [...to.childNodes]) {
    while (current?.id && !wanted.has(current.id)) {
      const removed = current;
      current = current.nextSibling;
      removed.remove();
    }
    const known = next.id ? byId.get(next.id) : undefined;
    if (known) {
      if (known === current) current = current.nextSibling;
      else from.insertBefore(known, current);
      morph(known, next);
    } else if (next.id || !current || current.id) {
      if (next.localName === "tr" && next.id) next.classList.add("new");
      from.insertBefore(next, current);
    } else {
      const old = current;
      current = current.nextSibling;
      morph(old, next);
    }
  }
  while (current) {
    const removed = current;
    current = current.nextSibling;
    removed.remove();
  }
}

function take(text, receivedAt) {
  const page = new DOMParser().parseFromString(text, "text/html");
  const fresh = page.getElementById("main");
  if (!fresh) return null;
  if (fresh.dataset.now) {
    storeTime = Number(fresh.dataset.now) / 1000;
    readAt = receivedAt;
  }
  morph(main(), document.adoptNode(fresh));
  document.title = page.title;
  enable();
  tick();
  return page;
}

// Live updates. The server says when the page has changed; then the page is loaded once more. There is
// never more than one load at a time.

let source = null;
let paused = false;
let loading = false;
let again = false;
let complaint = "";

function say(text, kind = "") {
  complaint = kind === "bad" ? text : "";
  statusLine.dataset.kind = kind;
  setText(statusLine, text);
}

function setLive(state, text) {
  live.dataset.state = state;
  live.setAttribute("aria-pressed", String(state !== "paused"));
  setText(live.querySelector(".text"), text);
}

async function refresh() {
  if (loading) {
    again = true;
    return;
  }
  loading = true;
  try {
    const response = await fetch(prefix + main().dataset.view, { headers: { accept: "text/html" }, cache: "no-store" });
    const receivedAt = performance.now();
    if (response.status === 401) return signedOut();
    const text = await response.text();
    if (response.ok && !paused) {
      take(text, receivedAt);
      if (complaint) say("");
    }
  } catch {
    away();
  } finally {
    loading = false;
    if (again) {
      again = false;
      setTimeout(refresh, 250);
    }
  }
}

function signedOut() {
  disconnect();
  setLive("away", "signed out");
  say("Your sign-in has ended. Load the page again to sign in.", "bad");
}

function away() {
  setLive("away", "reconnecting");
  say("The server does not respond. The page shows an earlier state and reconnects by itself.", "bad");
}

// Says why the server refuses the stream of events. Returns the time after which to try again.
async function explain(address) {
  const request = new AbortController();
  setTimeout(() => request.abort(), 5000);
  let reason;
  try {
    const response = await fetch(address, { headers: { accept: "text/html" }, cache: "no-store", signal: request.signal });
    if (response.status === 429) {
      const page = new DOMParser().parseFromString(await response.text(), "text/html");
      reason = page.querySelector("[data-code]")?.textContent;
    }
  } catch {
    // The server does not respond.
  }
  request.abort();
  if (paused) return 2000;
  if (!reason) {
    away();
    return 2000;
  }
  setLive("away", "not live");
  say(`The page is not live, and tries again every 15 s: ${reason}.`, "bad");
  return 15000;
}

function connect() {
  if (source || paused || document.hidden || !main().dataset.view) return;
  const address = `${prefix}/live?view=${encodeURIComponent(main().dataset.view)}`;
  source = new EventSource(address);
  source.addEventListener("open", () => setLive("live", "live"));
  source.addEventListener("changed", refresh);
  source.addEventListener("store", (event) => {
    if (event.data === "ok") {
      setLive("live", "live");
      if (complaint) say("");
    } else {
      setLive("away", "store away");
      say("The store does not respond. The page shows an earlier state and is updated when the store responds again.", "bad");
    }
  });
  source.addEventListener("signed-out", signedOut);
  source.addEventListener("error", async () => {
    if (source?.readyState !== EventSource.CLOSED) return away();
    // The browser has given up: the server responded, but not with events. Ask it why, and try again.
    disconnect();
    const delay = await explain(address);
    setTimeout(() => refresh().then(connect), delay);
  });
}

function disconnect() {
  source?.close();
  source = null;
}

function togglePause() {
  paused = !paused;
  if (paused) {
    disconnect();
    setLive("paused", "paused");
  } else {
    refresh();
    connect();
  }
}

document.addEventListener("visibilitychange", () => {
  if (!live) return;
  if (document.hidden) disconnect();
  else if (!paused) {
    refresh();
    connect();
  }
});

// Actions. The form of an action opens in a dialog beside the content, so that updates cannot change or
// close it. A failed action shows its reason in the dialog.

async function openDialog(address) {
  const response = await fetch(address, { headers: { accept: "text/html" }, cache: "no-store" });
  showInDialog(await response.text());
  if (!dialog.open) dialog.showModal();
  dialog.querySelector("input:not([type=hidden]):not([type=radio]), button[type=submit]")?.focus();
}

function showInDialog(text) {
  const page = new DOMParser().parseFromString(text, "text/html");
  dialog.replaceChildren(...[...page.getElementById("main").childNodes].map((node) => document.adoptNode(node)));
  tick();
}

async function submit(form, submitter) {
  if (submitter) submitter.disabled = true;
  try {
    const response = await fetch(form.action, { method: "POST", body: new URLSearchParams(new FormData(form)) });
    const receivedAt = performance.now();
    const text = await response.text();
    if (!response.redirected || !response.ok) return showInDialog(text);
    dialog.close();
    const address = new URL(response.url);
    const isHere = prefix + (main().dataset.view ?? "").split("?")[0] === address.pathname;
    if (!isHere) return location.assign(response.url);
    const page = take(text, receivedAt);
    say(page?.getElementById("status")?.textContent ?? "");
  } catch {
    say("The server does not respond. It is not known whether the action was done.", "bad");
    dialog.close();
  } finally {
    if (submitter) submitter.disabled = false;
  }
}

document.addEventListener("click", async (event) => {
  const target = event.target.closest("a, button");
  if (!target || event.ctrlKey || event.metaKey || event.shiftKey) return;
  if (target.matches("a[data-dialog]")) {
    event.preventDefault();
    await openDialog(target.href).catch(() => location.assign(target.href));
  } else if (target.matches("[data-close]") && dialog.open) {
    event.preventDefault();
    dialog.close();
  } else if (target.dataset.copy !== undefined) {
    await navigator.clipboard.writeText(target.dataset.copy);
    setText(target, "Copied");
    setTimeout(() => setText(target, "Copy"), 1500);
  }
});

dialog.addEventListener("submit", (event) => {
  event.preventDefault();
  submit(event.target, event.submitter);
});

// Theme, help and shortcuts.

const themeButton = document.getElementById("theme");
themeButton.hidden = false;
themeButton.addEventListener("click", () => {
  const chosen = document.documentElement.dataset.theme;
  const isDark = chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const theme = isDark ? "light" : "dark";
  document.documentElement.dataset.theme = theme;
  document.cookie = `leasehold_theme=${theme}; Path=${prefix || "/"}; Max-Age=31536000; SameSite=Strict`;
});

const shortcuts = [["/", "Search or filter"], ["p", "Pause or continue the updates"], ["t", "Dark or light"], ["?", "This help"], ["Esc", "Close"]];

function help() {
  const list = document.createElement("dl");
  for (const [key, text] of shortcuts) {
    const term = document.createElement("dt");
    const kbd = document.createElement("kbd");
    kbd.textContent = key;
    term.append(kbd);
    const what = document.createElement("dd");
    what.textContent = text;
    const pair = document.createElement("div");
    pair.append(term, what);
    list.append(pair);
  }
  list.className = "properties";
  const title = document.createElement("h1");
  title.textContent = "Keyboard shortcuts";
  const close = document.createElement("button");
  close.textContent = "Close";
  close.dataset.close = "";
  const buttons = document.createElement("div");
  buttons.className = "buttons";
  buttons.append(close);
  dialog.replaceChildren(title, list, buttons);
  dialog.showModal();
}

const helpButton = document.getElementById("help");
helpButton.hidden = false;
helpButton.addEventListener("click", help);

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || dialog.open) return;
  if (event.target.closest("input, textarea, select")) return;
  if (event.key === "/") {
    const field = document.querySelector("input[type=search]");
    if (field) {
      event.preventDefault();
      field.select();
    } else {
      location.assign(`${prefix}/locks`);
    }
  } else if (event.key === "?") help();
  else if (event.key === "t") themeButton.click();
  else if (event.key === "p" && live) togglePause();
});

// Shows the parts that only work with this script.
function enable() {
  for (const button of document.querySelectorAll("[data-copy]")) button.hidden = false;
}

enable();
tick();
setInterval(tick, 1000);
if (new URL(location).searchParams.has("notice")) {
  const address = new URL(location);
  address.searchParams.delete("notice");
  history.replaceState(null, "", address);
}
if (live) {
  live.hidden = false;
  live.addEventListener("click", togglePause);
  setLive("live", "live");
  connect();
}
