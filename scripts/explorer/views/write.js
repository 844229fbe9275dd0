// Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
/** Write: a text that grows token by token, the distribution of the next token, and what the sliders do to it. */

import { draw, makeRandom, processScores, shapeProbabilities, topIndices } from "../model/generate.js";
import { byId, debounce, el, makeBars, percent, plain, redraw, rove, tint } from "./dom.js";
import { makeMenu } from "./save.js";

const PACE = 70; // milliseconds a token
const LONGEST = 400; // tokens that are written
const EXAMPLES = ["Once upon a time, there was a little fox", "Tom found a big red ball in the park.", "The sun was hot and Lily wanted"];
const SLIDERS = ["temperature", "top_k", "top_p"];

export class WriteView {
  constructor(page) {
    this.page = page;
    this.model = null;
    this.isPlaying = false;
    this.seed = 1;
    this.written = []; // {token, probability, logits}: the logits that the token was drawn from
    this.selected = null; // index of a written token whose place is shown; null: the place behind the text
    this.logits = null; // of the place behind the text
    this.pending = null; // the answer that is awaited
    const restart = debounce(60, () => this.restart());
    byId("beginning").addEventListener("input", restart);
    byId("beginning-examples").append(
      ...EXAMPLES.map((text) => el("button", { type: "button", text, on: { click: () => this.use(text) } })),
    );
    const on = (id, click) => byId(id).addEventListener("click", click);
    on("play", () => (this.isPlaying ? this.pause() : this.play()));
    on("one", () => this.goOn());
    on("back", () => this.stepBack());
    on("again", () => this.restart());
    on("dice", () => {
      this.seed += 1;
      this.restart().then(() => this.play());
    });
    byId("story").addEventListener("keydown", (event) => {
      if (!["Enter", " "].includes(event.key)) return;
      event.preventDefault();
      event.target.click();
    });
    for (const id of SLIDERS) byId(id).addEventListener("input", () => {
      this.updateShape();
      this.page.report("bars");
    });
    byId("next-menu").append(makeMenu("the next token", () => byId("next-bars")));
    this.updateLabels();
  }

  /** All of this view, as JSON is saved. */
  numbers() {
    if (!this.model || !this.given) return null;
    const { model, logits, written } = this;
    const shaped = logits && this.shape(written.length, logits);
    const probabilities = logits && shapeProbabilities(logits);
    const read = (token) => ({ token, text: model.read(token) });
    return {
      seed: this.seed, ...this.options,
      given: this.given.map(read),
      written: written.map(({ token, probability }) => ({ ...read(token), probability })),
      next: logits && topIndices(probabilities, 50).map((token) => ({ ...read(token), probability: probabilities[token], drawn_with: shaped[token] })),
    };
  }

  get text() {
    return byId("beginning").value;
  }

  get options() {
    return Object.fromEntries(SLIDERS.map((id) => [id, Number(byId(id).value)]));
  }

  /** Show a model and {text, written, seed, temperature, top_k, top_p}; without a text, the one that is there. */
  show(model, { text, written = [], ...options }) {
    const isNew = model !== this.model;
    this.model = model;
    this.seed = Number(options.seed) || this.seed;
    const { temperature, top_k, top_p } = model.generation_config;
    const wanted = { ...(isNew && { temperature, top_k, top_p }), ...options };
    for (const id of SLIDERS) if (wanted[id] !== undefined && wanted[id] !== "") byId(id).value = wanted[id];
    this.updateLabels();
    this.describePenalty();
    const shown = text ?? (this.text || EXAMPLES[0]);
    if (!isNew && shown === this.text && String(written) === String(this.written.map(({ token }) => token))) {
      return this.updateShape();
    }
    byId("beginning").value = shown;
    return this.restart(written.slice(0, LONGEST));
  }

  use(text) {
    byId("beginning").value = text;
    this.restart();
    this.page.report("text");
  }

  hide() {
    this.pause();
  }

  /** Back to the beginning, and on to the tokens `again` that were written after it. */
  async restart(again = []) {
    this.pause();
    const { model, text } = this;
    if (!model) return;
    this.written = [];
    this.given = [];
    this.selected = null;
    this.tell();
    this.logits = null;
    this.hasEnded = false;
    if (text === "") return this.draw();
    try {
      const result = await model.peek({ text });
      if (!result || model !== this.model) return;
      this.given = result.input_ids;
      this.logits = result.logits;
      this.page.fail(null);
    } catch (error) {
      this.page.fail(error.message);
    }
    this.draw();
    for (const token of again) {
      if (this.hasEnded || !this.logits || model !== this.model || text !== this.text) break;
      await this.append(token);
    }
  }

  /** The link and the other views carry what is shown. */
  tell() {
    const token = this.selected === null ? undefined : this.given.length + this.selected - 1;
    this.page.changed(this, { text: this.text, seed: this.seed, ...this.options, written: this.written.map((each) => each.token), token });
  }

  play() {
    if (this.hasEnded || !this.logits) return;
    this.isPlaying = true;
    byId("play").textContent = "Pause";
    this.page.report("play");
    const tick = async () => {
      const next = performance.now() + PACE;
      await this.goOn(true);
      if (this.isPlaying) this.timer = setTimeout(tick, Math.max(0, next - performance.now()));
    };
    tick();
  }

  pause() {
    this.isPlaying = false;
    clearTimeout(this.timer);
    byId("play").textContent = "Write";
  }

  /** Draw the next token from what the bars show. */
  async goOn(isPlaying = false) {
    if (!isPlaying) this.pause();
    await this.pending;
    if (!this.logits || this.hasEnded) return this.pause();
    this.selected = null;
    // the same dice at the same place, whichever way led there
    const random = makeRandom(this.seed * 7919 + this.written.length);
    await this.append(draw(this.shape(this.written.length, this.logits), random));
    this.page.report("token");
  }

  /** Put a token behind the text, and ask what comes then. */
  append(token) {
    this.pending = this.appendNow(token);
    return this.pending;
  }

  async appendNow(token) {
    const { model, logits } = this;
    const probability = shapeProbabilities(logits)[token];
    this.written.push({ token, probability, logits });
    this.hasEnded = model.ends.has(token);
    this.logits = null;
    this.drawText();
    if (this.hasEnded || this.written.length >= LONGEST) {
      this.hasEnded = true;
      this.pause();
      return this.draw();
    }
    const { written } = this;
    const ids = this.idsBefore(written.length);
    try {
      const next = await model.peek({ input_ids: ids });
      // meanwhile the user may have gone elsewhere
      if (model !== this.model || written !== this.written || ids.length !== this.given.length + written.length) return;
      this.logits = next?.logits ?? null;
      this.hasEnded = next === null;
      if (this.hasEnded) this.pause();
    } catch (error) {
      this.pause();
      this.page.fail(error.message);
    }
    this.draw();
  }

  stepBack() {
    this.pause();
    const last = this.written.at(-1);
    if (!last) return;
    this.written = this.written.slice(0, -1);
    this.logits = last.logits;
    this.hasEnded = false;
    this.selected = null;
    this.draw();
    this.page.report("back");
  }

  /** Choose a token by hand, at the selected place or behind the text. */
  choose(token) {
    this.pause();
    if (this.selected !== null) {
      this.logits = this.written[this.selected].logits;
      this.written = this.written.slice(0, this.selected);
      this.selected = null;
    }
    this.hasEnded = false;
    this.append(token);
    this.page.report("chosen");
  }

  select(index) {
    this.pause();
    this.selected = index === this.selected ? null : index;
    this.draw();
    this.page.report("alternatives");
  }

  /** The ids that stand before the written token at an index. */
  idsBefore(index) {
    return [...this.given, ...this.written.slice(0, index).map((each) => each.token)];
  }

  /** The probabilities that a token is drawn from, at an index of the written tokens. */
  shape(index, logits) {
    return shapeProbabilities(processScores(logits, this.idsBefore(index), this.model.generation_config), this.options);
  }

  /** What the folder's generation_config.json does to repeated tokens. */
  describePenalty() {
    const { repetition_penalty: penalty = 1, no_repeat_ngram_size: size = 0 } = this.model.generation_config;
    const note = byId("penalty-note");
    note.hidden = penalty === 1 && size === 0;
    const isLess = penalty > 1 ? "less" : "more";
    note.replaceChildren(
      ...(penalty === 1 ? [] : [el("button.term", { type: "button", "data-term": "repetition penalty", text: "repetition penalty" }), ` ${penalty}: tokens that are in the text already become ${isLess} likely. `]),
      size === 0 ? "" : `No ${size} tokens come in the same order again. `,
      "The model’s generation_config.json says so.",
    );
  }

  draw() {
    this.drawText();
    this.drawBars();
    this.tell();
    byId("one").disabled = byId("play").disabled = !this.logits;
    byId("back").disabled = byId("again").disabled = this.written.length === 0;
  }

  drawText() {
    const { model, given, written } = this;
    const story = byId("story");
    // only what changed: a long text is not built again for each token
    const wanted = [...given.map((token) => ({ token })), ...written];
    const key = (each) => `${each.token} ${each.probability ?? ""}`;
    let same = 0;
    while (same < wanted.length && story.children[same]?.dataset.key === key(wanted[same])) same++;
    while (story.children.length > same) story.lastChild.remove();
    story.append(
      ...wanted.slice(same).map((each, i) => {
        const index = same + i - given.length;
        const text = model.read(each.token);
        const shown = model.ends.has(each.token) ? "■" : plain(text).replaceAll("↵", "↵\n");
        if (each.probability === undefined) {
          const isSpecial = each.token === model.config.bos_token_id;
          return el("span.given", { class: isSpecial ? "special" : null, "data-key": key(each), text: shown });
        }
        return el("span.piece.shaded", {
          role: "button",
          "data-key": key(each),
          "aria-label": `${plain(text).trim() || text}, probability ${percent(each.probability)}`,
          title: percent(each.probability),
          style: { "--tint": tint(each.probability) },
          on: { click: () => this.select(index) },
          text: shown,
        });
      }),
    );
    [...story.children].forEach((child, i) => child.classList.toggle("here", i - given.length === this.selected && i >= given.length));
    rove(story, ".piece");
    const end = written.length && model.ends.has(written.at(-1).token) ? "The model ended its text here (■). " : "";
    const full = this.hasEnded && !end ? `The text is full: this model reads at most ${model.config.max_position_embeddings} tokens. ` : "";
    byId("story-note").textContent = end + full;
  }

  drawBars() {
    const index = this.selected ?? this.written.length;
    const place = { logits: this.logits, ...this.written[index], index };
    const box = byId("next-bars");
    if (!place.logits) {
      this.bars = null;
      box.replaceChildren();
      byId("next-note").textContent = this.hasEnded ? "Nothing comes after the end. Step back, or click a token." : "Write a beginning first.";
      byId("shape-note").textContent = "";
      return;
    }
    const probabilities = shapeProbabilities(place.logits);
    const alternatives = topIndices(probabilities, 10).map((token) => ({ token, probability: probabilities[token], text: this.model.read(token) }));
    this.bars = makeBars(alternatives, {
      chosen: place.token ?? null,
      onChoose: ({ token }) => this.choose(token),
      label: "Ten likeliest tokens: choose one",
    });
    this.place = place;
    const chosen = this.selected === null ? null : `“${plain(this.model.read(place.token)).trim()}” stands here, with ${percent(place.probability)}. Choose another to go on from here.`;
    byId("next-note").textContent = chosen ?? "Click one to choose it by hand.";
    redraw(box, this.bars.element);
    this.updateShape();
  }

  /** The sliders moved: move the bars. */
  updateShape() {
    this.updateLabels();
    this.tell();
    if (!this.bars) return;
    const shaped = this.shape(this.place.index, this.place.logits);
    this.bars.update(({ token }) => shaped[token]);
    const possible = shaped.reduce((count, probability) => count + (probability > 0), 0);
    byId("shape-note").textContent =
      possible === 1 ? "Only one token can come." : `${possible.toLocaleString("en")} of ${shaped.length.toLocaleString("en")} tokens can come. A mark is the model’s own probability.`;
  }

  updateLabels() {
    const { temperature, top_k, top_p } = this.options;
    const texts = { temperature: temperature.toFixed(2), top_k: top_k === 0 ? "off" : String(top_k), top_p: top_p === 1 ? "off" : top_p.toFixed(2) };
    for (const id of SLIDERS) {
      document.querySelector(`output[for="${id}"]`).textContent = texts[id];
      byId(id).setAttribute("aria-valuetext", texts[id]);
    }
  }
}
