// Keeps the page up to date: an event brings the sections that changed, and they replace the old ones.
"use strict";
(() => {
  const live = document.getElementById("live");
  const said = live.querySelector(".said");
  const main = document.querySelector("main");
  let stamp = live.dataset.since;
  let source = null;

  const say = (on, words) => {
    live.className = on ? "on" : "off";
    if (said.textContent !== words) said.textContent = words;
  };

  // What a reader has done to a section is done to the new one: opened, typed, chosen, scrolled, focused.
  const remember = (section) => {
    const all = [...section.querySelectorAll("details, input, select, .scroll")];
    const focus = section.contains(document.activeElement) ? document.activeElement : null;
    const chain = [...section.querySelectorAll("*")];
    return {
      kept: all.map((each) => ({ open: each.open, value: each.value, checked: each.checked,
        left: each.scrollLeft, top: each.scrollTop, tag: each.tagName })),
      focus: focus && { id: focus.id, at: chain.indexOf(focus), tag: focus.tagName,
        from: focus.selectionStart, to: focus.selectionEnd },
    };
  };

  const restore = (section, past) => {
    const all = [...section.querySelectorAll("details, input, select, .scroll")];
    all.forEach((each, at) => {
      const old = past.kept[at];
      if (!old || old.tag !== each.tagName) return;
      if (each.tagName === "DETAILS") each.open = old.open;
      if (each.type === "checkbox" || each.type === "radio") each.checked = old.checked;
      else if (each.tagName === "INPUT" || each.tagName === "SELECT") each.value = old.value;
      if (each.tagName === "INPUT" && old.value) each.dispatchEvent(new Event("input", { bubbles: true }));
      each.scrollLeft = old.left;
      each.scrollTop = old.top;
    });
    if (!past.focus) return;
    const byPlace = section.querySelectorAll("*")[past.focus.at];
    const target = (past.focus.id && document.getElementById(past.focus.id)) ||
      (byPlace && byPlace.tagName === past.focus.tag ? byPlace : null);
    if (!target) return;
    target.focus({ preventScroll: true });
    if (past.focus.from !== null && past.focus.from !== undefined && target.setSelectionRange) {
      try { target.setSelectionRange(past.focus.from, past.focus.to); } catch { /* not a field of text */ }
    }
  };

  const show = ({ id, title, body }) => {
    let section = document.getElementById(id);
    if (!section) {
      section = document.createElement("section");
      section.id = id;
      main.append(section);
    }
    const past = remember(section);
    const head = document.createElement("h2");
    head.textContent = title;
    section.innerHTML = body;
    section.prepend(head);
    document.dispatchEvent(new CustomEvent("section", { detail: section }));
    restore(section, past);
  };

  const arrange = (order) => {
    for (const each of main.querySelectorAll(":scope > section")) {
      if (!order.includes(each.id)) each.remove();
    }
    order.forEach((id, at) => {
      const section = document.getElementById(id);
      const there = main.querySelectorAll(":scope > section")[at];
      if (section && there !== section) main.insertBefore(section, there);
    });
  };

  const take = (event) => {
    const update = JSON.parse(event.data);
    stamp = update.stamp;
    document.title = update.title;
    document.querySelector("h1").textContent = update.title;
    update.sections.forEach(show);
    arrange(update.order);
    tick();
  };

  const inWords = (seconds) => {
    if (seconds < 90) return `${Math.round(seconds)} s`;
    const minutes = Math.round(seconds / 60);
    if (minutes < 60) return `${minutes} min`;
    const rest = minutes % 60, hours = (minutes - rest) / 60;
    return hours < 24 && rest ? `${hours} h ${rest} min` : `${hours} h`;
  };

  const tick = () => {
    const now = Date.now() / 1000;
    for (const each of document.querySelectorAll("time[data-ago], time[data-until]")) {
      const past = each.dataset.ago !== undefined;
      const seconds = Math.max(0, past ? now - each.dataset.ago : each.dataset.until - now);
      const words = inWords(seconds) + (past && each.closest("dd, td") ? " ago" : "");
      if (each.textContent !== words) each.textContent = words;
    }
  };

  const connect = () => {
    source = new EventSource(`events?since=${encodeURIComponent(stamp)}`);
    source.onopen = () => say(true, "Live: changes appear by themselves.");
    source.onmessage = take;
    source.onerror = () => {
      say(false, "The program that shows this page does not answer; trying again.");
      source.close();
      setTimeout(connect, 1000);
    };
  };

  connect();
  setInterval(tick, 1000);
})();
