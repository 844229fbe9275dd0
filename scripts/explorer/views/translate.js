// Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
/** Translate: the translation while one types, what the model looked at, other choices, and the tree of beams. */

import { BeamTree } from "./beams.js";
import { byId, debounce, decimal, el, makeBars, makeChoice, numbered, percent, plain, rove, svg, tint, tokenText } from "./dom.js";
import { makeMenu, makeTable } from "./save.js";

const LONGEST = 128; // tokens of a translation
const MEAN = "mean";
const EXAMPLES = {
  en: ["Two women are talking on a bench in the park.", "A dog runs through the snow.", "A man in a red jacket is climbing a steep wall of ice."],
  de: ["Zwei Frauen unterhalten sich auf einer Bank im Park.", "Ein Hund rennt durch den Schnee.", "Ein Mann mit roter Jacke klettert an einer steilen Eiswand."],
};

export class TranslateView {
  /** @param page {report, fail, changed}: what the page offers to its views. */
  constructor(page) {
    this.page = page;
    this.model = null;
    this.prefix = []; // tokens that the user chose
    this.numBeams = null;
    this.layer = MEAN;
    this.head = MEAN;
    this.tree = new BeamTree(byId("beam-scroll"), byId("beam-controls"), byId("found"), page.report);
    this.source = byId("source");
    this.source.addEventListener("input", () => {
      this.prefix = [];
      byId("translate").ariaBusy = "true";
      this.update();
      page.report("text");
    });
    this.update = debounce(40, () => this.translate());
    for (const [row, select] of [["target", "focusTarget"], ["source", "focusSource"]]) {
      const list = byId(`weave-${row}`);
      const from = (event) => event.target.closest(".chip");
      list.addEventListener("pointerover", (event) => from(event) && this[select](Number(from(event).dataset.index)));
      list.addEventListener("focusin", (event) => this[select](Number(from(event).dataset.index)));
      list.addEventListener("pointerleave", () => this.drawAll());
      list.addEventListener("focusout", () => this.drawAll());
    }
    const table = () => makeTable([["", ...this.found.inputIds.map((id) => plain(this.model.readSource(id)).trim())], ...this.found.ids.map((id, i) => [plain(this.model.read(id)).trim(), ...Array.from(this.weightsOf(i), percent)])], "What each token looked at while it was chosen");
    byId("weave-menu").append(makeMenu("where it looked", () => byId("weave"), table));
    byId("beam-menu").append(makeMenu("beams", () => byId("beam-scroll").firstChild, () => this.tree.toTable()));
    new ResizeObserver(() => this.arrange()).observe(byId("weave"));
  }

  get text() {
    return this.source.value;
  }

  /** Show a model and {text, chosen, beams, layer, head}; without a text, the one that is there, or the first example. */
  show(model, { text, chosen = [], beams, layer, head }) {
    const isNew = model !== this.model;
    const { source_lang, target_lang, decoder_layers, decoder_attention_heads } = model.config;
    // what was typed while the first model was loaded stays, and what another model of the language read
    const typed = [undefined, source_lang].includes(this.model?.config.source_lang) ? this.source.value : "";
    this.model = model;
    const examples = EXAMPLES[source_lang] ?? ["1 2 3"];
    byId("source-label").textContent = nameLanguage(source_lang) ?? "Source";
    byId("target-label").textContent = nameLanguage(target_lang) ?? "Translation";
    byId("translation").lang = target_lang ?? "";
    this.source.lang = source_lang ?? "";
    byId("source-examples").replaceChildren(
      ...examples.map((example) => el("button", { type: "button", text: example, on: { click: () => this.use(example) } })),
    );
    const oneOf = (count, value) => (value !== undefined && Number(value) < count ? Number(value) : MEAN);
    [this.layer, this.head] = [oneOf(decoder_layers, layer), oneOf(decoder_attention_heads, head)];
    const mean = { value: MEAN, text: "mean" };
    const set = (name) => (value) => {
      this[name] = value;
      this.drawAll();
      this.page.changed(this, { [name]: value === MEAN ? undefined : value });
      this.page.report("head");
    };
    byId("look-controls").replaceChildren(
      makeChoice("layer", [mean, ...numbered(decoder_layers)], this.layer, set("layer")).element,
      makeChoice("head", [mean, ...numbered(decoder_attention_heads)], this.head, set("head")).element,
    );
    const numBeams = model.beamsOf(beams);
    const wanted = text ?? (typed || examples[0]);
    const isSame = !isNew && wanted === this.text && String(chosen) === String(this.prefix) && numBeams === this.numBeams;
    if (isSame && this.found) {
      this.page.changed(this, {}); // the link is this view's again
      return this.arrange();
    }
    [this.source.value, this.prefix, this.numBeams] = [wanted, chosen, numBeams];
    this.tree.makeControls(numBeams, (count) => {
      this.numBeams = count;
      this.translate();
    });
    return this.translate();
  }

  use(text) {
    this.prefix = [];
    this.source.value = text;
    this.translate();
    this.page.report("text");
  }

  /** Search, and show what was found. */
  async translate() {
    const { model, text, prefix } = this;
    if (!model) return;
    const run = (this.run = Symbol()); // a later run takes the place of this one, also between its requests
    this.page.changed(this, { text, beams: this.numBeams, chosen: prefix, token: undefined });
    byId("alternatives").hidden = true;
    byId("translate").ariaBusy = "true";
    if (text.trim() === "") return this.clear();
    const longest = Math.min(LONGEST, model.config.max_position_embeddings - 1); // all are read again, for their alternatives
    const options = { num_beams: this.numBeams, max_new_tokens: Math.max(1, longest - prefix.length) };
    const steps = [];
    const began = performance.now();
    try {
      const found = await model.search(text, { prefix, options }, (step) => steps.push(step));
      if (!found || run !== this.run) return;
      this.page.fail(null);
      const [best] = found.sequences;
      byId("translation").textContent = best.text || "(no words)";
      const time = performance.now() - began;
      const chosen = prefix.length ? `You chose its first ${prefix.length === 1 ? "token" : `${prefix.length} tokens`}. ` : "";
      const { length_penalty: penalty = 1 } = model.generation_config;
      byId("translation-note").replaceChildren(
        `${chosen}Score ${decimal(best.score)} `,
        el("button.term", { type: "button", "data-term": "nats", text: "nats" }),
        `${penalty === 1 ? " a token" : `, summed and divided by length^${penalty}`}, found in ${Math.max(1, Math.round(time))} ms. `,
        prefix.length ? el("button.link", { type: "button", text: "Back to the model’s own", on: { click: () => this.use(text) } }) : "",
      );
      this.tree.show(model, found, steps, prefix);
      const decoderInputIds = [...found.prompt, ...best.ids];
      const given = { input_ids: found.input_ids, decoder_input_ids: decoderInputIds };
      const read = { ...given, decoder_input_ids: decoderInputIds.slice(0, -1) }; // nothing reads the last token
      const [predicted, inspected] = await Promise.all([model.predict({ ...given, from: found.prompt.length }, "translate-predict"), model.inspect(read, "translate-inspect")]);
      if (!predicted || !inspected || run !== this.run) return;
      const start = found.prompt.length - 1;
      this.found = { ids: best.ids, inputIds: found.input_ids, start, prefix };
      this.predictions = predicted.predictions;
      this.attention = inspected.decoder.layers.map((layer) => layer.cross_attn.weights);
      this.drawTokens();
    } catch (error) {
      if (run !== this.run) return;
      this.clear();
      this.page.fail(error.message);
    }
  }

  /** All of this view, as JSON is saved. */
  numbers() {
    if (!this.found) return null;
    const { model, tree, found: { ids, inputIds, start, prefix }, predictions, attention } = this;
    const read = ({ token, ...rest }) => ({ token, text: model.read(token), ...rest });
    return {
      num_beams: this.numBeams, chosen: prefix,
      source: inputIds.map((id) => ({ token: id, text: model.readSource(id) })),
      translation: predictions.map(({ alternatives, ...each }) => ({ ...read(each), alternatives: alternatives.map(read) })),
      ids, sequences: tree.result.sequences,
      steps: tree.steps.map(({ candidates }) => candidates.map(read)),
      cross_attention: { first_query: start, layers: attention }, // of each layer (heads, queries, keys)
    };
  }

  clear() {
    this.found = null;
    byId("translate").ariaBusy = "false";
    byId("translation").textContent = "";
    byId("translation-note").textContent = "";
    for (const id of ["weave-source", "weave-target", "weave-reading"]) byId(id).replaceChildren();
    for (const id of ["weave-menu", "beam-menu"]) byId(id).hidden = true;
    byId("weave").querySelector("svg").replaceChildren();
    this.tree.clear();
  }

  drawTokens() {
    const { ids, inputIds, prefix } = this.found;
    byId("weave-source").replaceChildren(
      ...inputIds.map((id, i) =>
        el("span.chip", { tabindex: -1, "data-index": i }, tokenText(this.model.readSource(id)), el("span.share")),
      ),
    );
    byId("weave-target").replaceChildren(
      ...ids.map((id, i) => {
        const { probability } = this.predictions[i];
        return el(
          "button.chip.shaded",
          {
            type: "button",
            "data-index": i,
            "aria-label": `${plain(this.model.read(id)).trim()}, probability ${percent(probability)}`,
            "data-chosen": i < prefix.length && "true",
            style: { "--tint": tint(probability) },
            on: { click: () => this.showAlternatives(i) },
          },
          tokenText(this.model.read(id)),
        );
      }),
    );
    byId("weave-reading").textContent = "";
    for (const id of ["weave-menu", "beam-menu"]) byId(id).hidden = false;
    document.querySelectorAll("#translate .numbers-table").forEach((table) => table.replaceChildren()); // of another text
    rove(byId("weave-target"), ".chip");
    rove(byId("weave-source"), ".chip");
    this.arrange();
    byId("translate").ariaBusy = "false";
  }

  /** Two rows, one above the other; where they do not fit, two columns. */
  arrange() {
    if (!this.found) return;
    const weave = byId("weave");
    weave.classList.remove("upright");
    const rows = [...weave.querySelectorAll(".row")];
    weave.classList.toggle("upright", rows.some((row) => row.scrollWidth > weave.clientWidth + 1));
    this.drawAll();
  }

  /** The weights (keys) with which a target token was chosen: of a layer and head, or their mean. */
  weightsOf(target) {
    const layers = this.layer === MEAN ? this.attention : [this.attention[this.layer]];
    const [numHeads, numQueries, numKeys] = layers[0].shape;
    const heads = this.head === MEAN ? [...Array(numHeads).keys()] : [this.head];
    const mean = new Float32Array(numKeys);
    for (const { data } of layers) {
      for (const head of heads) {
        const row = (head * numQueries + this.found.start + target) * numKeys;
        for (let key = 0; key < numKeys; key++) mean[key] += data[row + key] / (layers.length * heads.length);
      }
    }
    return mean;
  }

  /** Without a word that is pointed at: the strong lines of all, pale. */
  drawAll() {
    if (!this.found) return;
    const lines = this.found.ids.flatMap((_, target) =>
      [...this.weightsOf(target)].map((weight, source) => ({ source, target, weight })),
    );
    this.drawLines(lines.filter(({ weight }) => weight > 0.2), 0.45);
    this.mark([], null, null);
  }

  focusTarget(target) {
    const weights = [...this.weightsOf(target)];
    this.drawLines(weights.map((weight, source) => ({ source, target, weight })), 1);
    this.mark(weights, "target", target);
    const best = weights.map((weight, i) => [weight, i]).sort((a, b) => b[0] - a[0]).slice(0, 3);
    const name = (id) => `“${plain(this.model.readSource(id)).trim()}”`;
    const shares = best.map(([weight, i]) => `${name(this.found.inputIds[i])} ${percent(weight)}`).join(", ");
    byId("weave-reading").textContent = `Choosing “${plain(this.model.read(this.found.ids[target])).trim()}”, it looked at ${shares}.`;
    this.page.report("lines");
  }

  focusSource(source) {
    const lines = this.found.ids.map((_, target) => ({ source, target, weight: this.weightsOf(target)[source] }));
    this.drawLines(lines, 1);
    this.mark([], "source", source);
    const name = plain(this.model.readSource(this.found.inputIds[source])).trim();
    const best = lines.toSorted((a, b) => b.weight - a.weight).slice(0, 3);
    const shares = best.map(({ target, weight }) => `“${plain(this.model.read(this.found.ids[target])).trim()}” ${percent(weight)}`);
    byId("weave-reading").textContent = `At “${name}” it looked most while it chose ${shares.join(", ")}.`;
  }

  mark(weights, side, index) {
    [...byId("weave-source").children].forEach((chip, i) => {
      chip.classList.toggle("here", side === "source" && i === index);
      chip.style.setProperty("--weight", `${Math.round(50 * (weights[i] ?? 0))}%`); // more would hide the text
      chip.querySelector(".share").textContent = weights[i] >= 0.01 ? percent(weights[i]) : "";
    });
    [...byId("weave-target").children].forEach((chip, i) => chip.classList.toggle("here", side === "target" && i === index));
  }

  drawLines(lines, strength) {
    const weave = byId("weave");
    const isUpright = weave.classList.contains("upright");
    const frame = weave.getBoundingClientRect();
    const places = (id) => [...byId(id).children].map((chip) => chip.getBoundingClientRect());
    const [sources, targets] = [places("weave-source"), places("weave-target")];
    const paths = lines
      .filter(({ weight }) => weight >= 0.01)
      .map(({ source, target, weight }) => {
        const [from, to] = [sources[source], targets[target]];
        const [x1, y1] = isUpright ? [from.right, (from.top + from.bottom) / 2] : [(from.left + from.right) / 2, from.bottom];
        const [x2, y2] = isUpright ? [to.left, (to.top + to.bottom) / 2] : [(to.left + to.right) / 2, to.top];
        const [dx, dy] = isUpright ? [(x2 - x1) / 2, 0] : [0, (y2 - y1) / 2];
        const points = [[x1, y1], [x1 + dx, y1 + dy], [x2 - dx, y2 - dy], [x2, y2]];
        const [start, ...rest] = points.map(([x, y]) => `${(x - frame.left).toFixed(1)},${(y - frame.top).toFixed(1)}`);
        return svg("path", {
          d: `M${start}C${rest.join(" ")}`,
          "stroke-width": (1 + 6 * weight).toFixed(2),
          "stroke-opacity": (strength * Math.min(1, 0.12 + weight)).toFixed(2),
        });
      });
    weave.querySelector("svg").replaceChildren(...paths);
  }

  /** The ten likeliest tokens at a place, as bars; a click goes on with another. */
  showAlternatives(target) {
    const { ids } = this.found;
    const prediction = this.predictions[target];
    const read = (id) => plain(this.model.read(id));
    const before = ids.slice(0, target).map(read).join("").trim();
    const alternatives = prediction.alternatives.map(({ token, probability }) => ({ token, probability, text: this.model.read(token) }));
    const choose = ({ token }) => {
      this.prefix = [...ids.slice(0, target), token];
      this.translate().then(() => byId("weave-target").children[target]?.focus({ preventScroll: true }));
      this.page.report("chosen");
    };
    const bars = makeBars(alternatives, { chosen: ids[target], onChoose: choose, label: "Alternatives" });
    const place = prediction.rank === 0 ? "the likeliest" : `number ${prediction.rank + 1}`;
    const panel = byId("alternatives");
    panel.replaceChildren(
      el("h3", {}, before ? `After “${before}” ` : "At the beginning ", "it might have said"),
      el("p.note", { text: `“${read(ids[target]).trim()}” was ${place}, with ${percent(prediction.probability)}. Choose another: what would the model have said then?` }),
      bars.element,
    );
    panel.hidden = false;
    this.page.changed(this, { token: this.found.start + target }); // the place that predicts it
    panel.scrollIntoView({ block: "nearest", behavior: "auto" });
    this.page.report("alternatives");
  }
}

function nameLanguage(code) {
  try {
    return code ? new Intl.DisplayNames(["en"], { type: "language" }).of(code) : null;
  } catch {
    return code;
  }
}
