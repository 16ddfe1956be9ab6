// A page works without this; with it tables sort and search, numbers stand beside the pointer, lines can be hidden.
// All listeners are on the document, so that a section that is replaced by its id needs nothing done again.
(() => {
  "use strict";
  const tip = document.getElementById("tip");

  const showTip = (words, x, y) => {
    tip.textContent = words;
    tip.hidden = !words;
    if (!words) return;
    const box = tip.getBoundingClientRect();
    tip.style.left = Math.max(4, Math.min(x + 12, innerWidth - box.width - 4)) + "px";
    tip.style.top = (y + box.height + 24 > innerHeight ? y - box.height - 12 : y + 16) + "px";
  };

  const heat = new WeakMap();
  const levels = (square) => {
    if (!heat.has(square)) {
      const bytes = Uint8Array.from(atob(square.dataset.heat), (letter) => letter.charCodeAt(0));
      heat.set(square, { bytes, names: square.dataset.names.split("\n") });
    }
    return heat.get(square);
  };
  const heatWords = (square, event) => {
    const box = square.querySelector("image").getBoundingClientRect();
    const { bytes, names } = levels(square);
    const place = (at, start, size) => Math.floor(((at - start) / size) * names.length);
    const [column, row] = [place(event.clientX, box.left, box.width), place(event.clientY, box.top, box.height)];
    if (row < 0 || column < 0 || row >= names.length || column >= names.length) return "";
    const [low, high] = [Number(square.dataset.low), Number(square.dataset.high)];
    const value = low + (bytes[row * names.length + column] / 255) * (high - low);
    return `${names[row]} and ${names[column]}: ${value.toFixed(2)}`;
  };
  document.addEventListener("pointermove", (event) => {
    const spot = event.target.closest?.("[data-tip]");
    const square = event.target.closest?.("[data-heat]");
    showTip(spot ? spot.dataset.tip : square ? heatWords(square, event) : "", event.clientX, event.clientY);
  });
  document.addEventListener("pointerleave", () => showTip("", 0, 0));

  // The drawing itself takes the focus; arrows then walk through its marks.
  document.addEventListener("keydown", (event) => {
    const drawing = event.target.closest?.("svg[tabindex]");
    if (!drawing || !["ArrowRight", "ArrowLeft", "Escape"].includes(event.key)) return;
    const spots = [...drawing.querySelectorAll("[data-tip]")].filter((spot) => !spot.closest("[hidden]"));
    if (event.key === "Escape" || !spots.length) return showTip("", 0, 0);
    event.preventDefault();
    const step = event.key === "ArrowRight" ? 1 : -1;
    const next = (Number(drawing.dataset.at ?? (step > 0 ? -1 : 0)) + step + spots.length) % spots.length;
    drawing.dataset.at = next;
    const box = spots[next].getBoundingClientRect();
    showTip(spots[next].dataset.tip, box.left + box.width / 2, box.top + box.height / 2);
  });
  document.addEventListener("focusout", () => showTip("", 0, 0));

  const sortBy = (head) => {
    const up = head.getAttribute("aria-sort") !== "ascending";
    for (const other of head.parentElement.children) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const place = [...head.parentElement.children].indexOf(head);
    const body = head.closest("table").tBodies[0];
    const key = (row) => {
      const cell = row.cells[place];
      return cell.dataset.value === undefined ? cell.textContent : cell.dataset.value === "" ? null : Number(cell.dataset.value);
    };
    const order = (one, other) => {
      if (one === null || other === null) return (one === null) - (other === null);
      const found = typeof one === "number" ? one - other : one.localeCompare(other, undefined, { numeric: true });
      return up ? found : -found;
    };
    const rows = [...body.rows].map((row) => [key(row), row]).sort((one, other) => order(one[0], other[0]));
    body.append(...rows.map(([, row]) => row));
  };
  const search = (field) => {
    const part = field.closest(".searchable");
    const words = field.value.toLowerCase();
    const rows = [...part.querySelector("tbody").rows];
    for (const row of rows) row.hidden = !row.textContent.toLowerCase().includes(words);
    part.querySelector(".count").textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length}`;
  };
  document.addEventListener("input", (event) => {
    if (event.target.matches?.("[data-search]")) search(event.target);
  });

  document.addEventListener("click", (event) => {
    const button = event.target.closest?.("button");
    if (!button) return;
    if (button.hasAttribute("data-sort")) sortBy(button.closest("th"));
    if (button.hasAttribute("data-switch")) {
      const seen = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", String(seen));
      for (const mark of button.closest("figure").querySelectorAll(`[data-of="${button.dataset.switch}"]`))
        mark.toggleAttribute("hidden", !seen);
    }
    if (button.hasAttribute("data-theme")) {
      const root = document.documentElement;
      const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
      root.dataset.theme = dark ? "light" : "dark";
    }
  });
})();
