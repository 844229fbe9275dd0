// Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
/** The page around the views: models, tabs, the link that carries model, view and text, and dropped folders. */

import { Model } from "./views/client.js";
import { byId, debounce, el } from "./views/dom.js";
import { InsideView } from "./views/inside.js";
import { explainTerms } from "./views/terms.js";
import { Tour } from "./views/tour.js";
import { TranslateView } from "./views/translate.js";
import { WriteView } from "./views/write.js";

const VIEWS = ["translate", "write", "inside"];
const FILES = /^[\w.-]+\.(json|safetensors)$/; // of a model's folder
const MOST_FILES = 200;
const LONGEST_TEXT = 400; // characters, as the text boxes take

class Page {
  constructor() {
    this.entries = new Map(); // name: {name, isTranslator, source}, and once asked for {loading}: a promise
    this.view = null;
    this.chosen = {}; // the model's name of each family, and of Inside
    this.link = {}; // what the link carries
    this.tour = new Tour(this);
    this.views = { translate: new TranslateView(this), write: new WriteView(this), inside: new InsideView(this) };
    this.writeLink = debounce(300, () => history.replaceState(null, "", `#${new URLSearchParams(this.link)}`));

    for (const view of VIEWS) byId(`tab-${view}`).addEventListener("click", () => this.open(view));
    document.querySelector(".tabs").addEventListener("keydown", (event) => this.onTabKey(event));
    byId("model").addEventListener("change", (event) => this.openModel(event.target.value));
    byId("copy-link").addEventListener("click", () => this.copyLink());
    byId("open-folder").addEventListener("click", () => byId("folder").click());
    byId("folder").addEventListener("change", ({ target }) => {
      this.addFolder([...target.files].map((file) => [file.webkitRelativePath || file.name, file]));
      target.value = "";
    });
    this.acceptDrops();
    explainTerms();
    document.querySelectorAll("[data-legend]").forEach(fillLegend);
    addEventListener("hashchange", () => this.followLink());
  }

  /** Read what models there are, and open what the link says. */
  async start() {
    try {
      const response = await fetch("models.json");
      const names = response.ok ? await response.json() : [];
      const configs = await Promise.all(names.map(async (name) => (await fetch(`models/${encodeURIComponent(name)}/config.json`)).json()));
      names.forEach((name, i) => {
        const url = new URL(`models/${encodeURIComponent(name)}/`, location.href.split("#")[0]).href;
        this.entries.set(name, { name, isTranslator: configs[i].model_type === "scratch_transformer", source: { url } });
      });
    } catch {
      this.fail("The list of models could not be read. Drop the folder of a model onto this page.");
    }
    this.followLink();
  }

  /** Open what `#...` names. What it leaves out stays as it is. */
  followLink() {
    const { view, model, text, ...options } = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
    const entry = this.entries.get(model);
    if (entry) this.choose(entry);
    const first = this.entries.size > 0 && ![...this.entries.values()].some((each) => each.isTranslator) ? "write" : "translate";
    this.open(VIEWS.includes(view) ? view : (this.view ?? first), { text: text?.slice(0, LONGEST_TEXT), options });
  }

  choose(entry) {
    this.chosen[entry.isTranslator ? "translate" : "write"] = entry.name;
    this.chosen.inside = entry.name;
  }

  /** The models of a view: those of its family, or all. */
  entriesOf(view) {
    const entries = [...this.entries.values()];
    return view === "inside" ? entries : entries.filter((entry) => entry.isTranslator === (view === "translate"));
  }

  /**
   * Open a view.
   *
   * @param {string} text the text to show; default: what the view has, or else its first example.
   */
  async open(view, { text, options } = {}) {
    if (view !== this.view) this.views[this.view]?.hide?.();
    const texts = { ...this.texts };
    this.view = view;
    for (const each of VIEWS) {
      byId(each).hidden = each !== view;
      byId(`tab-${each}`).setAttribute("aria-selected", String(each === view));
      byId(`tab-${each}`).tabIndex = each === view ? 0 : -1;
    }
    const entries = this.entriesOf(view);
    const name = entries.some((each) => each.name === this.chosen[view]) ? this.chosen[view] : entries[0]?.name;
    byId("model").replaceChildren(...entries.map((each) => el("option", { value: each.name, text: each.name })));
    byId("model").hidden = entries.length === 0;
    byId(view).classList.toggle("empty", !name);
    this.fail(null);
    if (!name) {
      const kind = { translate: "that translates", write: "that writes", inside: "" }[view];
      return this.fail(`There is no model ${kind} here. Open the folder of one, or drop it onto this page.`.replace("  ", " "));
    }
    byId("model").value = name;
    this.chosen[view] = name;
    const entry = this.entries.get(name);
    const model = await this.load(entry);
    if (!model || this.view !== view || this.chosen[view] !== name) return;
    this.link = { view, model: name };
    // Inside begins with the text of the family's own view
    const family = entry.isTranslator ? "translate" : "write";
    const shared = view === "inside" && this.views.inside.model !== model ? texts[family] : undefined;
    const shown = this.views[view].show(model, text ?? shared, options);
    this.changed(this.views[view].text ? { text: this.views[view].text } : {});
    this.describe(model);
    return shown;
  }

  openModel(name) {
    this.choose(this.entries.get(name));
    return this.open(this.view);
  }

  /** A model, which is loaded once; null if it could not be, which the page then says. */
  async load(entry) {
    if (!entry.loading) {
      this.loadingEntry = entry;
      byId("loading").textContent = `Loading ${entry.name} …`;
      this.showProgress(null);
      entry.loading = Model.load(entry.name, entry.source, (share) => entry === this.loadingEntry && this.showProgress(share));
    }
    try {
      return await entry.loading;
    } catch (error) {
      this.entries.delete(entry.name);
      await this.open(this.view);
      this.fail(`${entry.name}: ${error.message}`);
      return null;
    } finally {
      if (entry === this.loadingEntry) {
        byId("loading").textContent = byId("percent").textContent = "";
        byId("loaded").hidden = true;
      }
    }
  }

  /** How much of a model's weights has been read, from 0 to 1, as a bar and as a number; null: it is not known yet. */
  showProgress(share) {
    const percent = share === null ? null : Math.round(100 * share);
    byId("loaded").hidden = false;
    byId("loaded").ariaValueNow = percent;
    byId("loaded").style.setProperty("width", `${percent ?? 0}%`);
    byId("percent").textContent = percent === null ? "" : `${percent} %`;
  }

  describe(model) {
    const { config, num_parameters, dtype } = model;
    const layers = model.is_translator ? `${config.encoder_layers} + ${config.decoder_layers} layers` : `${config.num_hidden_layers} layers`;
    byId("about").textContent = `${model.name}: ${num_parameters.toLocaleString("en")} weights (${dtype}), ${layers}, width ${config.width ?? config.d_model ?? config.hidden_size}, ${model.vocabulary.length.toLocaleString("en")} tokens. ${(model.warnings ?? []).join(" ")}`;
  }

  /** A view's text or options changed: the link carries them. */
  changed(fields) {
    const isOwn = this.entries.get(this.chosen[this.view])?.source.files === undefined;
    this.link = { ...this.link, ...fields };
    if (fields.text !== undefined && this.view) {
      const isTranslator = this.view === "inside" ? this.entries.get(this.chosen.inside)?.isTranslator : this.view === "translate";
      this.texts = { ...this.texts, [isTranslator ? "translate" : "write"]: fields.text };
    }
    byId("copy-link").disabled = !isOwn;
    this.writeLink();
  }

  /** Say one sentence, or take it back. */
  fail(message) {
    byId("error").textContent = message ?? "";
    byId("error").hidden = !message;
  }

  /** A view says what the user did. */
  report = (name) => this.tour.report(name);

  use(text) {
    this.views[this.view].use(text);
  }

  async copyLink() {
    history.replaceState(null, "", `#${new URLSearchParams(this.link)}`);
    try {
      await navigator.clipboard.writeText(location.href);
      byId("copy-link").textContent = "Copied";
    } catch {
      byId("copy-link").textContent = "It is in the address bar";
    }
    setTimeout(() => (byId("copy-link").textContent = "Copy link"), 2000);
  }

  /** A folder that the user opened or dropped: [path, File] of each file. The model may lie in a folder of it. */
  async addFolder(files) {
    this.fail(null);
    const depth = (path) => path.split("/").length;
    const configs = files.map(([path]) => path).filter((path) => path.split("/").at(-1) === "config.json");
    const [config = ""] = configs.sort((a, b) => depth(a) - depth(b));
    const folder = config.slice(0, -"config.json".length);
    const own = files.filter(([path]) => path.startsWith(folder)).map(([path, file]) => [path.slice(folder.length), file]);
    const title = (folder || files[0]?.[0] || "").split("/").at(-2) || "dropped model";
    let name = title;
    for (let i = 2; this.entries.has(name); i++) name = `${title} (${i})`;
    const entry = { name, source: { files: new Map(own.filter(([path]) => FILES.test(path))) } };
    const model = await this.load(entry);
    if (!model) return;
    entry.isTranslator = model.is_translator;
    this.entries.set(name, entry);
    this.choose(entry);
    await this.open(this.view === "inside" ? "inside" : entry.isTranslator ? "translate" : "write");
  }

  acceptDrops() {
    const shade = byId("drop");
    const hasFiles = (event) => event.dataTransfer?.types.includes("Files");
    addEventListener("dragover", (event) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      shade.hidden = false;
    });
    addEventListener("dragleave", (event) => (shade.hidden = event.relatedTarget === null || shade.hidden));
    addEventListener("drop", async (event) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      shade.hidden = true;
      const dropped = [...event.dataTransfer.items].filter(({ kind }) => kind === "file").map((item) => {
        const entry = item.webkitGetAsEntry();
        const file = item.getAsFile();
        return entry ? listFiles(entry) : [[file.name, file]];
      });
      this.addFolder((await Promise.all(dropped)).flat());
    });
  }

  onTabKey(event) {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    const next = VIEWS[(VIEWS.indexOf(this.view) + by + VIEWS.length) % VIEWS.length];
    byId(`tab-${next}`).focus();
    this.open(next);
  }
}

/** [path, File] of the files of a dropped file or folder, and of the folders in it, once. */
async function listFiles(entry, path = "", depth = 0) {
  if (entry.isFile) return [[path + entry.name, await new Promise((resolve, reject) => entry.file(resolve, reject))]];
  if (depth > 1) return [];
  const reader = entry.createReader();
  const found = [];
  for (let batch = null; (batch === null || batch.length > 0) && found.length < MOST_FILES; ) {
    batch = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
    found.push(...batch);
  }
  return (await Promise.all(found.map((each) => listFiles(each, `${path}${entry.name}/`, depth + 1)))).flat();
}

/** What the colour of a token says. */
function fillLegend(legend) {
  const samples = [["100 %", 0], ["50 %", 7], ["10 %", 23], ["1 %", 47], ["0.1 %", 70]];
  legend.append(
    el("span", { text: "probability of a token" }),
    ...samples.map(([text, share]) => el("span.sample.shaded", { text, style: { "--tint": `${share}%` } })),
  );
}

new Page().start();
