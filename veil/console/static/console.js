// What needs a script: streams that change parts of the page, countdowns, and ages that run. Every page works without it.
"use strict";
(() => {
  // How far the browser's clock is from the server's two: the engine's, which deadlines run on, and the wall's.
  let engineOffset = 0, wallOffset = 0;
  const read = () => {
    engineOffset = Number(document.body.dataset.nowMs) - Date.now();
    wallOffset = Number(document.body.dataset.wallMs) - Date.now();
  };

  // ---- lengths, as the server writes them
  const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const length = (seconds, most) => {
    const parts = [];
    let left = Math.max(0, Math.floor(seconds));
    for (const [size, unit] of UNITS) {
      const number = Math.floor(left / size);
      left -= number * size;
      if (number) parts.push(`${number} ${unit}`);
    }
    return parts.slice(0, most).join(" ") || "0 s";
  };

  const run = () => {
    const engine = Date.now() + engineOffset, wall = Date.now() + wallOffset;
    for (const each of document.querySelectorAll("[data-deadline-ms]")) {
      const left = Number(each.dataset.deadlineMs) - engine;
      if (each.tagName === "PROGRESS") { each.value = Math.max(0, left); continue; }
      each.textContent = length(Math.ceil(left / 1000), 4);
      each.classList.toggle("over", left <= 0);
    }
    for (const each of document.querySelectorAll("[data-since-ms]")) {
      each.textContent = length((engine - Number(each.dataset.sinceMs)) / 1000, 2);
    }
    for (const each of document.querySelectorAll("[data-ago-ms]")) {
      const age = (wall - Number(each.dataset.agoMs)) / 1000;
      each.textContent = age >= 0 ? `${length(age, 2)} ago` : `in ${length(-age, 2)}`;
    }
  };

  // ---- instants in the reader's zone; the server writes UTC, which stays in the title
  const zone = new Intl.DateTimeFormat("sv-SE", {dateStyle: "short", timeStyle: "medium"});
  const local = () => {
    for (const each of document.querySelectorAll("time.at:not([title])")) {
      each.title = each.textContent;
      const ms = each.dateTime.match(/\.(\d{3})Z$/)?.[1] ?? "000";
      each.textContent = `${zone.format(new Date(each.dateTime))}.${ms}`;
    }
  };

  // ---- copying: a button on what people paste elsewhere
  const copyable = () => {
    if (!navigator.clipboard) return;
    for (const each of document.querySelectorAll("pre.command, .card > pre.body, .copyable")) {
      if (each.parentNode.classList.contains("copied")) continue;
      const box = document.createElement("div"), button = document.createElement("button");
      box.className = "copied";
      button.type = "button";
      button.className = "copy";
      button.textContent = "Copy";
      button.addEventListener("click", async () => {
        await navigator.clipboard.writeText(each.textContent.trim());
        button.textContent = "Copied";
        setTimeout(() => { button.textContent = "Copy"; }, 1500);
      });
      each.replaceWith(box);
      box.append(each, button);
    }
  };

  // ---- the keyboard: / to search, g and a letter to go, ? for the list
  let went = 0;
  document.addEventListener("click", event => event.target.closest?.("[data-close]")?.closest("dialog").close());
  document.addEventListener("keydown", event => {
    const keys = document.getElementById("keys");
    if (!keys || event.ctrlKey || event.metaKey || event.altKey || event.target.closest?.("input, textarea, select, dialog")) return;
    if (event.key === "?") { event.preventDefault(); keys.showModal(); return; }
    if (event.key === "/") {
      const search = document.querySelector("main input[type=search]");
      if (search) { event.preventDefault(); search.focus(); search.select(); }
      return;
    }
    if (event.key === "g") { went = Date.now(); return; }
    if (Date.now() - went < 1500) keys.querySelector(`[data-key="${CSS.escape(event.key)}"]`)?.click();
    went = 0;
  });

  // ---- fragments: children with ids are changed one by one, so that what stayed the same is not touched
  const sources = new WeakMap(), FOCUSED = "a, button, input, summary";
  const source = element => sources.get(element) ?? element.outerHTML;
  const busy = element => {
    const selection = window.getSelection();
    return element.contains(document.activeElement) && document.activeElement.matches("input:not([type=checkbox]), textarea, select")
      || (selection && !selection.isCollapsed && element.contains(selection.anchorNode));
  };
  // What the reader opened or ticked stays so when the row around it is drawn again; a box that now means something else does not.
  const keep = (old, fresh) => {
    for (const [kind, state] of [["details", "open"], ["input[type=checkbox]", "checked"]]) {
      const now = fresh.querySelectorAll(kind);
      old.querySelectorAll(kind).forEach((each, at) => { if (now[at] && now[at].value === each.value) now[at][state] = each[state]; });
    }
  };
  const put = (target, html) => {
    const holder = document.createElement("template");
    holder.innerHTML = html;
    const fresh = [...holder.content.children];
    if (!fresh.length || !fresh.every(each => each.id)) {
      if (!busy(target)) target.replaceChildren(holder.content);
      return;
    }
    const wanted = new Set(fresh.map(each => each.id));
    for (const old of [...target.children]) if (!wanted.has(old.id) && !busy(old)) old.remove();
    let place = target.firstElementChild;
    for (const each of fresh) {
      const html = each.outerHTML, old = document.getElementById(each.id);
      let kept = old && target.contains(old) ? old : null;
      if (kept && source(kept) !== html && !busy(kept)) {
        keep(kept, each);
        const focused = kept.contains(document.activeElement) ? document.activeElement : null;
        const at = focused ? [...kept.querySelectorAll(FOCUSED)].indexOf(focused) : -1;
        if (kept === place) place = place.nextElementSibling;
        kept.replaceWith(each);
        sources.set(each, html);
        if (at >= 0) each.querySelectorAll(FOCUSED)[at]?.focus();
        kept = each;
      } else if (!kept) {
        sources.set(each, html);
        kept = each;
      }
      if (kept === place) place = place.nextElementSibling;
      else if (kept.nextElementSibling !== place || kept.parentNode !== target) target.insertBefore(kept, place);
    }
  };

  // ---- the stream of the page: one, closed while nobody sees the page
  let stream = null, address = null, retry = null;
  // Why the page does not update; nothing where it does. Without words of the server's: that the connection is lost.
  const state = document.getElementById("live-state"), lost = state?.textContent;
  const say = (stopped, words) => {
    if (!state) return;
    state.hidden = !stopped;
    state.textContent = words || lost;
  };
  const close = () => { stream?.close(); stream = address = null; clearTimeout(retry); };
  const open = () => {
    const wanted = document.hidden ? null : document.querySelector("[data-live]")?.dataset.live ?? null;
    if (wanted === address && (stream || !wanted)) return;
    close();
    if (!wanted) return;
    address = wanted;
    stream = new EventSource(wanted);
    stream.addEventListener("fragments", event => {
      const told = JSON.parse(event.data);
      engineOffset = told.now_ms - Date.now();
      for (const [id, html] of Object.entries(told.html)) {
        const target = document.getElementById(id);
        if (target) put(target, html);
      }
      say(false);
      dress();
      document.documentElement.dataset.liveEvents = Number(document.documentElement.dataset.liveEvents ?? 0) + 1;
    });
    const told = event => JSON.parse(event.data).sentence;
    stream.addEventListener("gone", event => { stream?.close(); stream = null; say(true, told(event)); });
    // Too many are open: some other page may be closed meanwhile.
    stream.addEventListener("full", event => {
      stream?.close(); stream = null;
      say(true, told(event));
      retry = setTimeout(() => { address = null; open(); }, 15000);
    });
    stream.addEventListener("error", () => {
      say(true);
      if (stream?.readyState === EventSource.CLOSED) { stream = null; retry = setTimeout(() => { address = null; open(); }, 5000); }
    });
  };

  const dress = () => { run(); local(); copyable(); };
  const start = () => {
    read(); dress(); open();
    document.querySelector(".keys-hint")?.toggleAttribute("hidden", !document.getElementById("keys") || matchMedia("(hover: none)").matches);
  };
  document.addEventListener("visibilitychange", open);
  document.addEventListener("htmx:afterSettle", () => { dress(); open(); });
  window.addEventListener("pagehide", close);
  window.addEventListener("pageshow", open);
  // A row of boxes with one that ticks them all.
  document.addEventListener("change", event => {
    const all = event.target.closest?.("[data-ticks]");
    if (all) for (const box of document.querySelectorAll(`input[type=checkbox][name="${CSS.escape(all.dataset.ticks)}"]`)) box.checked = all.checked;
  });
  start();
  setInterval(run, 250);
})();
