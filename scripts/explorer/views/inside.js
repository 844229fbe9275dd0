// Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
/** Inside: the map of the model, the numbers of a block, and one token on its way up. */

import { showBlock } from "./blocks.js";
import { byId, debounce, el, makeChoice, numbered, percent, plain, redraw, rove, tokenText } from "./dom.js";
import { rowOf } from "./heat.js";
import { drawMap, isSame, listBlocks, PARTS } from "./map.js";
import { pauseRow } from "./row.js";
import { makeMenu } from "./save.js";

const LONGEST = 64; // tokens that are shown
const EXAMPLES = {
  en: ["A dog runs through the snow.", "Two women are talking."],
  de: ["Ein Hund rennt durch den Schnee.", "Zwei Frauen unterhalten sich."],
  writer: ["Once upon a time, there was a little fox", "Lily likes her red ball. She throws the"],
};

export class InsideView {
  constructor(page) {
    this.page = page;
    this.model = null;
    this.text = "";
    this.step = undefined; // of the block's panel; its first
    this.stage = 0; // of the one row
    this.isWide = false; // all layers' heads
    const input = byId("inside-text");
    const read = debounce(60, () => this.read(input.value));
    input.addEventListener("input", read);
    byId("map").addEventListener("keydown", (event) => this.onKey(event));
    byId("map-menu").append(makeMenu("the model", () => byId("map").firstChild));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.trace && this.draw());
  }

  /** Show a model and {text, chosen, written, beams, layer, head, token}, and the `block` and `step` that a link names. */
  show(model, { text, chosen = [], written = [], beams, layer, head, token, block, step }) {
    const isNew = model !== this.model;
    const typed = this.model ? "" : byId("inside-text").value;
    this.model = model;
    const examples = EXAMPLES[model.is_translator ? model.config.source_lang : "writer"] ?? ["1 2 3"];
    byId("inside-examples").replaceChildren(
      ...examples.map((example) => el("button", { type: "button", text: example, on: { click: () => this.use(example) } })),
    );
    const attention = { stack: "decoder", kind: "sublayer", layer: 0, part: model.is_translator ? "cross_attn" : "self_attn" };
    if (isNew) {
      Object.assign(this, { trace: null, layers: { encoder: 0, decoder: 0 }, head: 0, position: null, selected: attention });
    }
    const blocks = ["encoder", "decoder"].flatMap((stack) => (stack === "encoder" && !model.is_translator ? [] : listBlocks(model, stack)));
    const named = blocks.find((each) => keyOf(each) === block);
    const ofLayer = { ...(this.selected.layer === undefined || this.selected.stack === "encoder" ? attention : this.selected), layer: Number(layer) };
    if (named) this.selected = named;
    else if (layer !== undefined && blocks.some((each) => isSame(each, ofLayer))) this.selected = ofLayer;
    else if (token !== undefined && this.selected.stack === "encoder") this.selected = attention;
    if (this.selected.layer !== undefined) this.layers[this.selected.stack] = this.selected.layer;
    if (head !== undefined) this.head = Number(head) || 0;
    if (token !== undefined) this.position = Number(token);
    if (step !== undefined) this.step = step;
    byId("inside-text").value = text ?? (typed || examples[0]);
    return this.read(byId("inside-text").value, { chosen, written, beams });
  }

  use(text) {
    byId("inside-text").value = text;
    return this.read(text);
  }

  /**
   * Run the model over a text; a translator reads its own translation in the decoder.
   *
   * @param {object} given the tokens of the translation that were `chosen` by hand, those that were `written` after the text, and `beams`.
   */
  async read(text, { chosen = [], written = [], beams } = {}) {
    const { model } = this;
    if (!model) return;
    this.text = text;
    this.page.changed(this, { text, chosen, written }, this.own);
    try {
      if (text.trim() === "") return this.clear();
      let given;
      let note = "";
      if (model.is_translator) {
        const options = { max_new_tokens: Math.max(1, LONGEST - chosen.length), num_beams: model.beamsOf(beams) };
        const found = await model.search(text, { prefix: chosen, options });
        if (!found || model !== this.model) return;
        given = { input_ids: found.input_ids, decoder_input_ids: [...found.prompt, ...found.sequences[0].ids.slice(0, -1)] };
        if (chosen.length) note = `You chose the first ${chosen.length === 1 ? "token" : `${chosen.length} tokens`} of the translation. `;
      } else {
        const found = await model.predict({ text, from: Infinity }, "inside-predict");
        if (!found || model !== this.model) return;
        const ids = [...found.input_ids, ...written];
        given = { input_ids: ids.slice(0, LONGEST) };
        if (written.length) note = `${written.length === 1 ? "The token" : `The ${written.length} tokens`} of Write come after it. `;
        if (ids.length > LONGEST) note += `Only the first ${LONGEST} of ${ids.length} tokens are shown. `;
      }
      const trace = await model.inspect(given, "inside-inspect");
      if (!trace || model !== this.model) return;
      if (trace.input_ids.length > LONGEST) throw new Error(`The text has ${trace.input_ids.length} tokens; here, at most ${LONGEST} can be shown.`);
      this.page.fail(null);
      const isOwn = chosen.length + written.length > 0;
      byId("inside-note").replaceChildren(note, isOwn ? el("button.link", { type: "button", text: "Without them", on: { click: () => this.use(text) } }) : "");
      this.trace = trace;
      this.ids = { encoder: trace.input_ids, decoder: model.is_translator ? given.decoder_input_ids : trace.input_ids };
      this.texts = {
        encoder: this.ids.encoder.map((id) => model.readSource(id)),
        decoder: this.ids.decoder.map((id) => model.read(id)),
      };
      const last = this.ids[this.selected.stack].length - 1;
      if (this.position === null) this.position = model.is_translator ? Math.min(2, last) : last;
      this.position = Math.min(this.position, last);
      this.draw();
    } catch (error) {
      if (model !== this.model) return;
      this.clear();
      this.page.fail(error.message);
    }
  }

  /** All of the block and its stack's tokens, as JSON is saved. */
  numbers() {
    if (!this.trace) return null;
    const { selected, trace, texts, ids, position, head } = this;
    const { layers, ...stack } = trace[selected.stack];
    const numbers = selected.layer === undefined ? stack : layers[selected.layer][selected.part];
    const isHead = ["linear", "softmax"].includes(selected.kind);
    return { block: selected, token: position, head, tokens: texts, ids, numbers: isHead ? { logits: trace.logits } : numbers };
  }

  /** What only this view's link carries. */
  get own() {
    return { block: keyOf(this.selected), step: this.step };
  }

  /** The link and the other views carry what is followed. */
  tell(fields) {
    this.page.changed(this, fields, this.own);
  }

  clear() {
    this.trace = null;
    for (const id of ["inside-tokens", "inside-note", "map", "map-controls", "block", "way"]) byId(id).replaceChildren();
  }

  draw() {
    this.drawTokens();
    this.drawMap();
    this.drawBlock();
    this.drawWay();
  }

  drawTokens() {
    const { selected, position, model } = this;
    const chips = this.texts[selected.stack].map((text, i) =>
      el("button.chip", { type: "button", "aria-pressed": String(i === position), on: { click: () => this.follow(i) } }, tokenText(text)),
    );
    const list = byId("inside-tokens");
    const name = model.is_translator ? `In the ${selected.stack}, follow` : "Follow";
    redraw(list, el("span.choice-label", { text: name }), ...chips);
    rove(list, ".chip");
  }

  drawMap() {
    const { model, layers, selected } = this;
    const map = byId("map");
    const hadFocus = map.contains(document.activeElement);
    map.replaceChildren(drawMap(model, layers, selected, (block) => this.select(block, true)));
    if (hadFocus) map.querySelector('.block[aria-pressed="true"]')?.focus();
    const stacks = model.is_translator ? ["encoder", "decoder"] : ["decoder"];
    redraw(
      byId("map-controls"),
      ...stacks.map((stack) => {
        const count = model.is_translator ? model.config[`${stack}_layers`] : model.config.num_hidden_layers;
        const label = model.is_translator ? `${stack} layer` : "layer";
        return makeChoice(label, numbered(count), layers[stack], (layer) => {
          const { kind, part } = this.selected.stack === stack && this.selected.layer !== undefined ? this.selected : { kind: "sublayer", part: "self_attn" };
          this.select({ stack, kind, part, layer });
        }).element;
      }),
    );
  }

  drawBlock() {
    const { model, trace, selected, position } = this;
    const attention = trace[selected.stack].layers[selected.layer]?.[selected.part];
    if (attention?.weights) this.head = Math.min(this.head, attention.weights.shape[0] - 1);
    const reading = {
      model,
      trace,
      position,
      head: this.head,
      step: this.step,
      stage: this.stage,
      isWide: this.isWide,
      tokens: this.texts[selected.stack],
      keys: this.texts.encoder,
      ids: this.ids[selected.stack],
      lens: this.lensAt?.(selected) ?? null,
      lensNote: selected.stack === "encoder" ? "An encoder predicts nothing; this shows which tokens lie near the vector of" : "If the layers above were left out, after",
    };
    const on = {
      row: (row) => this.follow(row),
      head: (head, layer) => {
        this.head = head;
        if (layer === selected.layer) this.drawBlock();
        else this.select({ ...selected, layer });
        this.tell({ head, ...(selected.stack === "decoder" && { layer }) });
        this.page.report("head");
      },
      step: (step) => {
        this.step = step;
        this.drawBlock();
        this.tell({});
      },
      stage: (stage) => (this.stage = stage),
      wide: (isWide) => {
        this.isWide = isWide;
        this.drawBlock();
      },
    };
    pauseRow();
    redraw(byId("block"), ...showBlock(selected, reading, on));
  }

  /** The places where the logit lens looks: the sum of embedding and position, after each sub-layer, and the head. */
  async drawWay() {
    const { model, trace, selected, position } = this;
    const { stack } = selected;
    const key = `${stack} ${position}`;
    if (this.wayKey === key && this.wayTrace === trace) return this.markWay();
    Object.assign(this, { wayKey: key, wayTrace: trace, lensAt: null });
    const record = trace[stack];
    const places = [{ block: { stack, kind: record.embed_norm ? "embed_norm" : "sum" }, name: "embedding + position", states: record.embed_norm ?? record.embed_sum }];
    record.layers.forEach((layer, i) => {
      for (const [part, { hidden_states }] of Object.entries(layer)) places.push({ block: { stack, kind: "add", layer: i, part }, name: `${i + 1} · ${PARTS[part]}`, states: hidden_states });
    });
    if (stack === "decoder") places.at(-1).name += ": its answer"; // nothing but the head comes after it
    const width = places[0].states.shape[1];
    const states = new Float32Array(places.length * width);
    places.forEach((place, i) => states.set(rowOf(place.states, position), i * width));
    const list = byId("way");
    try {
      const found = await model.lens(stack, states);
      if (!found || this.wayKey !== key || this.wayTrace !== trace || model !== this.model) return;
      const lenses = found.map((alternatives) => alternatives.map((each) => ({ ...each, text: model.read(each.token) })));
      this.lensAt = (block) => lenses[places.findIndex((place) => isSame(place.block, toPlace(block, record)))] ?? null;
      this.wayPlaces = places;
      list.replaceChildren(
        ...places
          .map(({ block, name, states: matrix }, i) => {
            const [best] = lenses[i] ?? [];
            const share = best?.probability ?? 0;
            return el(
              "li",
              {},
              el(
                "button",
                { type: "button", title: `length of the vector: ${Math.hypot(...rowOf(matrix, position)).toFixed(2)}`, on: { click: () => this.select(block, true) } },
                el("span.name", { text: name }),
                best ? el("bdi", { text: plain(best.text) }) : null,
                el("span.number", { text: best ? percent(share) : "" }),
                el("span.fill", { "aria-hidden": "true", style: { width: `${100 * share}%` } }),
              ),
            );
          })
          .reverse(),
      );
      this.drawBlock();
      this.markWay();
    } catch (error) {
      this.page.fail(error.message);
    }
  }

  markWay() {
    const { selected, wayPlaces: places = [] } = this;
    const current = places.findIndex(({ block }) => isSame(block, toPlace(selected, this.trace[selected.stack])));
    [...byId("way").children].forEach((item, i) => item.classList.toggle("here", places.length - 1 - i === current));
  }

  /** Open a block. Its panel is brought into view if its beginning is above the page; after a click, also if it is below. */
  select(block, isClick = false) {
    const last = this.ids[block.stack].length - 1;
    if (block.stack !== this.selected.stack) this.position = Math.min(this.position, last);
    this.selected = listBlocks(this.model, block.stack).find((each) => isSame(each, block));
    if (this.selected.layer !== undefined) this.layers[block.stack] = this.selected.layer;
    this.draw();
    this.tell(block.stack === "decoder" && block.layer !== undefined ? { layer: block.layer } : {});
    const { top } = byId("block").getBoundingClientRect();
    if (top < 0 || (isClick && top > 0.8 * innerHeight)) byId("block").scrollIntoView();
    this.page.report("block");
  }

  /** Follow the token at a position. */
  follow(position) {
    this.position = Math.max(0, Math.min(this.ids[this.selected.stack].length - 1, position));
    this.draw();
    this.tell({ token: this.position });
    this.page.report("follow");
  }

  onKey(event) {
    const along = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const upwards = { ArrowUp: 1, ArrowDown: -1 }[event.key];
    if (!this.trace || (along ?? upwards) === undefined) return;
    event.preventDefault();
    if (along) return this.follow(this.position + along);
    const blocks = listBlocks(this.model, this.selected.stack);
    const place = blocks.findIndex((block) => isSame(block, this.selected));
    const next = blocks[place + upwards];
    if (next) this.select(next);
    this.page.report("up");
  }
}

/** A block in a link. */
const keyOf = ({ stack, kind, layer, part }) => [stack, kind, layer, part].filter((each) => each !== undefined).join(".");

/** The place of the logit lens that belongs to a block: after a sub-layer for the sub-layer itself. */
function toPlace(block, record) {
  if (block.kind === "sublayer") return { ...block, kind: "add" };
  if (block.kind === "sum" && record.embed_norm) return { ...block, kind: "embed_norm" };
  return block;
}

