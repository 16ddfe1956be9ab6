
// Keeps a live page up to date: an event brings the sections that changed, and their bodies replace the old ones.
(() => {
  "use strict";
  const live = document.getElementById("live");
  const said = live.querySelector(".said");
  const main = document.querySelector("main");
  let stamp = live.dataset.since;
  let source = null;

  const say = (on, words) => {
    live.className = on ? "on" : "off";
    if (said.textContent !== words) said.textContent = words;
  };

  // What a reader has done to a section is done to the new one: opened, typed, sorted, hidden, scrolled, focused.
  const USED = "details, input, select, .scroll, th[aria-sort], button[aria-pressed='false'], svg[data-at]";

  const place = (section, each) => [...section.querySelectorAll(each.tagName)].indexOf(each);

  const remember = (section) => {
    const focus = section.contains(document.activeElement) ? document.activeElement : null;
    return [...new Set([...section.querySelectorAll(USED), ...(focus ? [focus] : [])])].map((each) => ({
      tag: each.tagName, at: place(section, each), words: each.textContent, open: each.open, value: each.value,
      left: each.scrollLeft, top: each.scrollTop, sort: each.getAttribute("aria-sort"), step: each.dataset.at,
      pressed: each.getAttribute("aria-pressed"), focus: each === focus, from: each.selectionStart, to: each.selectionEnd,
    }));
  };

  const restore = (section, past) => {
    for (const old of past) {
      const each = section.querySelectorAll(old.tag)[old.at];
      if (!each) continue;
      if (old.open) each.open = true;
      if (old.tag === "INPUT" || old.tag === "SELECT") each.value = old.value;
      if (old.tag === "INPUT" && old.value) each.dispatchEvent(new Event("input", { bubbles: true }));
      if (old.pressed === "false" && each.textContent === old.words) each.click();
      if (old.sort && each.textContent === old.words) {
        each.querySelector("button")?.click();
        if (old.sort === "descending") each.querySelector("button")?.click();
      }
      if (old.step !== undefined) each.dataset.at = old.step;
      each.scrollLeft = old.left;
      each.scrollTop = old.top;
      if (!old.focus) continue;
      each.focus({ preventScroll: true });
      if (old.tag === "INPUT") each.setSelectionRange?.(old.from, old.to);
    }
  };

  const made = (id) => {
    const section = document.createElement("section");
    const head = document.createElement("h2");
    const body = document.createElement("div");
    section.id = id;
    head.id = `${id}-head`;
    body.className = "body";
    section.setAttribute("aria-labelledby", head.id);
    section.append(head, body);
    main.append(section);
    return section;
  };

  const show = ({ id, title, body }) => {
    const section = document.getElementById(id) || made(id);
    const past = remember(section);
    section.querySelector("h2").textContent = title;
    section.querySelector(".body").innerHTML = body;
    restore(section, past);
  };

  const arrange = (order) => {
    for (const each of [...main.children]) if (!order.includes(each.id)) each.remove();
    order.forEach((id, at) => {
      const section = document.getElementById(id);
      if (section && main.children[at] !== section) main.insertBefore(section, main.children[at]);
    });
    const titles = order.map((id) => document.getElementById(`${id}-head`).textContent);
    const links = [...document.querySelectorAll("nav a")];
    if (links.map((each) => each.textContent).join("\n") === titles.join("\n")) return;
    document.querySelector("nav ol").replaceChildren(...order.map((id, at) => {
      const item = document.createElement("li"), link = document.createElement("a");
      link.href = `#${id}`;
      link.textContent = titles[at];
      item.append(link);
      return item;
    }));
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
