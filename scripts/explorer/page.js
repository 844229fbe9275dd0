// Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
/** The page around the views: models, tabs, the link that carries model, view and text, and dropped folders. */

import { Model } from "./views/client.js";
import { byId, el } from "./views/dom.js";
import { InsideView } from "./views/inside.js";
import { saveJson, subject } from "./views/save.js";
import { explainTerms } from "./views/terms.js";
import { Tour } from "./views/tour.js";
import { TranslateView } from "./views/translate.js";
import { WriteView } from "./views/write.js";

const VIEWS = ["translate", "write", "inside"];
const FILES = /^[\w.-]+\.(json|safetensors)$/; // of a model's folder
const MOST_FILES = 200;
const LONGEST_TEXT = 400; // characters, as the text boxes take
const TOKENS = ["chosen", "written"]; // fields of a link that are lists of token ids
const NUMBERS = ["beams", "seed", "temperature", "top_k", "top_p", "token"];

class Page {
  constructor() {
    // name: {name, source, isTranslator}; `loading`, once asked for, is a promise; `isMissing`: only a link names it
    this.entries = new Map();
    this.view = null;
    this.chosen = {}; // the model's name of each view
    this.threads = { translate: {}, write: {} }; // what the views of a family share: text, tokens chosen by hand, layer, ...
    this.link = {}; // what the link carries
    this.tour = new Tour(this);
    this.views = { translate: new TranslateView(this), write: new WriteView(this), inside: new InsideView(this) };

    for (const view of VIEWS) byId(`tab-${view}`).addEventListener("click", () => this.goTo(view));
    document.querySelector(".tabs").addEventListener("keydown", (event) => this.onTabKey(event));
    byId("model").addEventListener("change", (event) => this.openModel(event.target.value));
    byId("copy-link").addEventListener("click", () => this.copyLink());
    byId("save-numbers").addEventListener("click", () => {
      const numbers = this.views[this.view]?.numbers();
      if (numbers) saveJson(numbers, this.view);
      else this.say("There are no numbers here yet.");
    });
    byId("open-folder").addEventListener("click", () => byId("folder").click());
    byId("folder").addEventListener("change", ({ target }) => {
      this.addFolder([...target.files].map((file) => [file.webkitRelativePath || file.name, file]));
      target.value = "";
    });
    this.acceptDrops();
    explainTerms();
    document.querySelectorAll("[data-legend]").forEach(fillLegend);
    addEventListener("hashchange", () => this.followLink());
    addEventListener("workerstopped", () => this.entries.forEach((entry) => (entry.loading = null)));
    document.documentElement.classList.remove("waiting");
    byId("without").remove();
  }

  /** Read what models there are, and open what the link says. */
  async start() {
    const problems = [];
    try {
      const names = await readJson("models.json");
      const add = async (name) => {
        const url = new URL(`models/${encodeURIComponent(name)}/`, location.href.split("#")[0]).href;
        const entry = { name, source: { url } };
        this.entries.set(name, entry);
        try {
          entry.isTranslator = (await readJson(`${url}config.json`)).model_type === "scratch_transformer";
        } catch {
          problems.push(name);
        }
      };
      await Promise.all(names.map(add));
    } catch {
      this.say("The list of models could not be read. Drop the folder of a model onto this page.");
    }
    if (problems.length) this.say(`models.json lists ${problems.map((name) => `“${name}”`).join(", ")}, which could not be read.`);
    this.followLink();
  }

  /** Open what `#...` names. What it leaves out stays as it is. */
  followLink() {
    clearTimeout(this.linkTimer);
    const { view, model, ...state } = readState(location.hash.slice(1));
    if (model && !this.entries.has(model)) {
      this.entries.set(model, { name: model, isMissing: true, isTranslator: ["translate", "write"].includes(view) ? view === "translate" : undefined });
    }
    const entry = this.entries.get(model);
    if (entry) this.choose(entry);
    const first = this.entries.size > 0 && ![...this.entries.values()].some((each) => each.isTranslator) ? "write" : "translate";
    this.open(VIEWS.includes(view) ? view : (this.view ?? first), state);
  }

  choose(entry) {
    const family = entry.isTranslator === undefined ? this.view : familyOf(entry);
    this.chosen[family ?? "translate"] = entry.name;
    this.chosen.inside = entry.name;
  }

  /** The models of a view: those of its family, or all. Of one that could not be read, the family is not known. */
  entriesOf(view) {
    const entries = [...this.entries.values()];
    return view === "inside" ? entries : entries.filter((entry) => [undefined, view === "translate"].includes(entry.isTranslator));
  }

  /** Open a view as a user does, who can come back. */
  goTo(view) {
    this.writeLink();
    history.pushState(null, "", location.href);
    // Inside shows what the view before it showed
    if (view === "inside" && this.chosen[this.view]) this.chosen.inside = this.chosen[this.view];
    return this.open(view);
  }

  openModel(name) {
    this.writeLink();
    history.pushState(null, "", location.href);
    this.choose(this.entries.get(name));
    return this.open(this.view);
  }

  /** Open a view. `state` is what a link carries; default: what the views of the family share. */
  async open(view, state = {}) {
    if (view !== this.view) this.views[this.view]?.hide?.();
    this.view = view;
    for (const each of VIEWS) {
      byId(each).hidden = each !== view;
      byId(`tab-${each}`).setAttribute("aria-selected", String(each === view));
      byId(`tab-${each}`).tabIndex = each === view ? 0 : -1;
    }
    const entries = this.entriesOf(view);
    const known = entries.find((each) => each.isTranslator !== undefined) ?? entries[0];
    const name = entries.some((each) => each.name === this.chosen[view]) ? this.chosen[view] : known?.name;
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
    this.freeOthers();
    const entry = this.entries.get(name);
    const asked = { ...(this.asked?.view === view && this.asked), ...state, view };
    this.asked = asked; // kept until a model can answer
    this.link = { ...asked, view, model: name };
    this.writeLink();
    let model;
    try {
      model = await this.load(entry);
    } catch (error) {
      if (this.asked !== asked) return; // something else was opened
      byId(view).classList.add("empty");
      return this.fail(error.message, entry.isMissing ? null : () => this.open(view));
    }
    if (this.asked !== asked) return;
    if (entry.isTranslator !== model.is_translator) {
      entry.isTranslator = model.is_translator; // its config.json was not readable before
      this.choose(entry);
      if (view !== "inside") return this.open(familyOf(entry), state);
    }
    byId(view).classList.remove("empty");
    this.asked = null;
    delete asked.view;
    for (const field of TOKENS.filter((each) => asked[each]?.some((id) => id >= model.vocabulary.length))) {
      delete asked[field];
      this.say("The link names tokens that this model does not have: they are left out.");
    }
    this.link = { view, model: name };
    const family = familyOf(entry);
    if (this.threads[family].model !== name) this.threads[family] = { model: name };
    const shown = this.views[view].show(model, Object.assign(this.threads[family], asked));
    this.describe(model);
    return shown;
  }

  /** Free the memory of the models that no view shows. */
  freeOthers() {
    const shown = Object.values(this.chosen);
    for (const entry of this.entries.values()) {
      if (!entry.loading || shown.includes(entry.name)) continue;
      entry.loading.then((model) => model.free()).catch(() => {});
      entry.loading = null;
    }
  }

  /** A model, which is loaded once. */
  async load(entry) {
    if (entry.isMissing) throw new Error(`${entry.name}: this model is not here. If it was a folder on your machine, open it again.`);
    if (!entry.loading) {
      this.loadingEntry = entry;
      byId("loading").textContent = `Loading ${entry.name} …`;
      this.showProgress(null);
      entry.loading = Model.load(entry.name, entry.source, (share) => entry === this.loadingEntry && this.showProgress(share));
    }
    const { loading } = entry;
    try {
      return await loading;
    } catch (error) {
      if (entry.loading === loading) entry.loading = null; // it can be tried again
      throw new Error(`${entry.name}: ${error.message}`, { cause: error });
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

  /** A view's state changed: the link carries it, and the views of the same family share what is not `own`. */
  changed(view, fields, own = {}) {
    const entry = this.entries.get(this.chosen[this.view]);
    if (!entry || this.asked || this.views[this.view] !== view) return; // it is no longer shown
    Object.assign(this.threads[familyOf(entry)], fields);
    this.link = { ...this.link, ...this.threads[familyOf(entry)], ...own };
    Object.assign(subject, { model: entry.name, text: this.link.text ?? "" });
    byId("copy-link").disabled = entry.source?.files !== undefined;
    clearTimeout(this.linkTimer);
    this.linkTimer = setTimeout(() => this.writeLink(), 300);
  }

  writeLink() {
    clearTimeout(this.linkTimer);
    if (this.link.view) history.replaceState(null, "", `#${writeState(this.link)}`);
  }

  /** Say what is wrong in one sentence, or take it back. `retry`: what a button does. */
  fail(message, retry = null) {
    const button = retry && el("button", { type: "button", text: "Try again", on: { click: retry } });
    byId("error").replaceChildren(...[message, button].filter(Boolean));
    byId("error").hidden = !message;
  }

  /** Say something that stands until it is closed. */
  say(message, ...nodes) {
    const close = el("button.link", { type: "button", text: "Close", on: { click: () => this.say(null) } });
    byId("notice").replaceChildren(...(message ? [`${message} `, ...nodes, close] : []));
    byId("notice").hidden = !message;
  }

  /** A view says what the user did. */
  report = (name) => this.tour.report(name);

  use(text) {
    this.views[this.view].use(text);
  }

  async copyLink() {
    this.writeLink();
    const done = (text) => {
      byId("copy-link").textContent = text;
      setTimeout(() => (byId("copy-link").textContent = "Copy link"), 2000);
    };
    try {
      await navigator.clipboard.writeText(location.href);
      done("Copied");
    } catch {
      const field = el("input", { readonly: true, value: location.href, "aria-label": "Link", on: { focus: () => field.select() } });
      this.say("This browser does not let the page copy. Here is the link:", field);
      field.focus();
    }
  }

  /** A folder that the user opened or dropped: [path, File] of each file. The models may lie in folders of it. */
  async addFolder(files) {
    this.fail(null);
    this.say(null);
    const depth = (path) => path.split("/").length;
    const configs = files.map(([path]) => path).filter((path) => path.split("/").at(-1) === "config.json");
    const least = Math.min(...configs.map(depth));
    const folders = configs.filter((path) => depth(path) === least).map((path) => path.slice(0, -"config.json".length)).sort();
    const added = [];
    const problems = [];
    for (const folder of folders.length ? folders : [""]) {
      const own = new Map(files.filter(([path]) => path.startsWith(folder)).map(([path, file]) => [path.slice(folder.length), file]));
      const title = (folder || files[0]?.[0] || "").split("/").at(-2) || "dropped model";
      let name = title;
      for (let i = 2; this.entries.has(name) && !this.entries.get(name).isMissing; i++) name = `${title} (${i})`;
      const entry = { name, source: { files: new Map([...own].filter(([path]) => FILES.test(path))) } };
      try {
        // the first that can be loaded is opened; the others are only listed
        if (added.length === 0) entry.isTranslator = (await this.load(entry)).is_translator;
        else entry.isTranslator = JSON.parse(await own.get("config.json").text()).model_type === "scratch_transformer";
        this.entries.set(name, entry);
        added.push(entry);
      } catch (error) {
        problems.push(error instanceof SyntaxError ? `${name}: config.json is damaged, or is of another kind.` : error.message);
      }
    }
    const [first] = added;
    if (!first) return this.fail(problems.join(" "));
    if (folders.length > 1) problems.push(`This folder holds ${folders.length} models; ${first.name} is open, and the list has the others.`);
    this.choose(first);
    this.say(problems.join(" ") || null);
    await this.open(this.view === "inside" ? "inside" : familyOf(first));
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
    this.goTo(next);
  }
}

const familyOf = (entry) => (entry.isTranslator ? "translate" : "write");

async function readJson(url) {
  const response = await fetch(url);
  if (!response.ok) throw new Error(`${response.status}`);
  return response.json();
}

/** A view's state as a link carries it; lists of token ids are joined by commas. */
function writeState(state) {
  const isEmpty = (value) => value === undefined || value === null || value.length === 0;
  return new URLSearchParams(Object.entries(state).filter(([name, value]) => name === "text" || !isEmpty(value)));
}

function readState(hash) {
  const state = Object.fromEntries(new URLSearchParams(hash));
  for (const name of TOKENS) if (name in state) state[name] = state[name].split(",").filter((id) => /^\d+$/.test(id)).map(Number);
  for (const name of NUMBERS) if (name in state && !(Number(state[name]) >= 0)) delete state[name];
  if ("text" in state) state.text = state.text.slice(0, LONGEST_TEXT);
  return state;
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
