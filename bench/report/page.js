// Sorting and filtering of tables; the page reads the same without it.
"use strict";
const UNIT = {ns: 1e-9, "µs": 1e-6, ms: 1e-3, s: 1, KiB: 1024, MiB: 1048576, GiB: 1073741824, k: 1e3, M: 1e6, G: 1e9, T: 1e12};

function key(cell) {
  const text = cell ? cell.textContent.trim() : "";
  const found = text.match(/^[×≈]?([-+]?\d[\d,.]*(?:e[-+]?\d+)?)\s*([A-Za-zµ]*)/);
  if (!found) return text === "–" ? Infinity : text;
  return parseFloat(found[1].replace(/,/g, "")) * (UNIT[found[2]] || UNIT[found[2].charAt(0)] || 1);
}

function order(a, b) {
  if (typeof a === "number" && typeof b === "number") return a === b ? 0 : a - b;
  if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
  return a.localeCompare(b);
}

for (const table of document.querySelectorAll("table.sortable")) {
  table.querySelectorAll("thead th").forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      for (const other of table.querySelectorAll("thead th")) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const rows = [...table.tBodies[0].rows].map((row) => [key(row.cells[column]), row]);
      rows.sort((a, b) => (down ? -1 : 1) * order(a[0], b[0]));
      table.tBodies[0].append(...rows.map((pair) => pair[1]));
    });
  });
}

const filters = document.querySelector(".filters");
if (filters) {
  filters.hidden = false;
  const [find, outcome, found] = ["find", "outcome", "found"].map((id) => document.getElementById(id));
  const rows = [...document.querySelectorAll("table.cells tbody tr")];
  const words = rows.map((row) => row.textContent.toLowerCase());
  const outcomes = rows.map((row) => row.cells[6].textContent.trim());
  const apply = () => {
    const asked = find.value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    rows.forEach((row, i) => {
      const shown = asked.every((word) => words[i].includes(word)) && (!outcome.value || outcomes[i] === outcome.value);
      row.hidden = !shown;
      count += shown;
    });
    found.textContent = `${count} of ${rows.length} rows`;
  };
  find.addEventListener("input", apply);
  outcome.addEventListener("change", apply);
}
