"use strict";
// Columns sort by a click on their heads, series come and go by their keys, and what has a tip says it under the pointer.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  [...table.tHead.rows[0].cells].forEach((cell, column) => {
    if (!cell.textContent) return;
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = cell.textContent;
    cell.replaceChildren(button);
    button.addEventListener("click", () => {
      const down = cell.getAttribute("aria-sort") === "ascending";
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      cell.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = (row) => row.cells[column].textContent.trim();
      const number = (text) => parseFloat(text.replace(/[~,%\s]/g, ""));
      const rows = [...body.rows].sort((one, other) => {
        const [a, b] = [key(one), key(other)];
        const [x, y] = [number(a), number(b)];
        if (Number.isNaN(x) !== Number.isNaN(y)) return Number.isNaN(x) ? 1 : -1;
        return (Number.isNaN(x) ? a.localeCompare(b) : x - y) * (down ? -1 : 1);
      });
      body.append(...rows);
    });
  });
}
for (const key of document.querySelectorAll("button.key")) {
  key.addEventListener("click", () => {
    const shown = key.getAttribute("aria-pressed") !== "true";
    key.setAttribute("aria-pressed", String(shown));
    const series = key.closest("figure").querySelectorAll("g.series")[Number(key.dataset.series)];
    if (series) series.classList.toggle("away", !shown);
  });
}
const tip = document.getElementById("tip");
document.addEventListener("pointermove", (event) => {
  const words = event.target instanceof Element && event.target.getAttribute("data-tip");
  tip.hidden = !words;
  if (!words) return;
  tip.textContent = words;
  tip.style.left = `${Math.min(event.clientX + 12, innerWidth - tip.offsetWidth - 8)}px`;
  tip.style.top = `${Math.max(event.clientY - tip.offsetHeight - 10, 4)}px`;
});
