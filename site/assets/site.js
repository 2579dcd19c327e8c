// Navigation on small screens, and search over the index that Hugo writes.
const menu = document.getElementById("menu"), nav = document.getElementById("nav");
menu.addEventListener("click", () => menu.setAttribute("aria-expanded", nav.classList.toggle("open")));

const input = document.getElementById("search"), results = document.getElementById("results");
const root = document.body.dataset.root;
let index;

async function load() {
  const documents = await (await fetch(root + "index.json")).json();
  const engine = new MiniSearch({
    fields: ["title", "heading", "text"],
    storeFields: ["title", "heading"],
    searchOptions: { boost: { title: 4, heading: 3 }, prefix: true, fuzzy: 0.15, combineWith: "AND" },
  });
  engine.addAll(documents);
  return engine;
}

async function search() {
  index ??= load();
  const engine = await index, query = input.value.trim();
  results.replaceChildren();
  results.hidden = query === "";
  if (results.hidden) return;
  let found = engine.search(query);
  if (found.length === 0) found = engine.search(query, { combineWith: "OR" });
  for (const hit of found.slice(0, 12)) {
    const item = document.createElement("li"), link = document.createElement("a");
    link.href = hit.id;
    link.append(hit.heading || hit.title);
    if (hit.heading) {
      const page = document.createElement("small");
      page.append(hit.title);
      link.append(page);
    }
    item.append(link);
    results.append(item);
  }
  if (found.length === 0) {
    const none = document.createElement("p");
    none.append("No page has these words.");
    results.append(none);
  }
}

if (window.MiniSearch && location.protocol !== "file:") {
  input.addEventListener("input", search);
  input.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { input.value = ""; results.hidden = true; }
    if (event.key === "Enter") results.querySelector("a")?.click();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && document.activeElement.tagName !== "INPUT") { event.preventDefault(); input.focus(); }
  });
} else {
  input.disabled = true;
  input.placeholder = "Search needs a server: make docs-serve";
}
