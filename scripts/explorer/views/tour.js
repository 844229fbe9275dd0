// Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
/** A tour for someone who sees a Transformer for the first time: each step points at a place and asks for one action. */

import { byId, el } from "./dom.js";

/** `at` is the place; on a wide page `see` is scrolled to, on a narrow one `near` or else the place; `done` names what the views report when the action was taken; `examples` are sentences to try. */
const STEPS = [
  {
    view: "translate", at: "#source", see: "header", title: "A sentence goes in",
    text: "A Transformer was first built to translate. It reads the whole sentence at once, cut into tokens: words or pieces of words.",
    action: "Type a sentence of your own about people or animals, or try one of these.",
    examples: ["A little girl is playing with her dog.", "An old man is reading a newspaper."], done: "text",
  },
  {
    view: "translate", at: "#weave", see: "#look-title", title: "It looks while it writes",
    text: "The translation is written one token after the other. For each, the model weighs all words of the source; this weighing is called attention.",
    action: "Point at a word of the translation, and follow the lines.", done: "lines",
  },
  {
    view: "translate", at: "#look-controls", see: "#look-title", title: "Many heads, many layers",
    text: "It does not look once but many times: in each layer, with several heads. Some heads follow the words in their order, others look at the end of the sentence.",
    action: "Choose a layer and a head instead of the mean, and point at the words again.", done: "head",
  },
  {
    view: "translate", at: "#weave-target", see: "#look-title", title: "It might have said something else",
    text: "At each place the model gives every token a probability. The more colour a token has, the less sure the model was.",
    action: "Click a coloured word, and choose another from the bars: the rest of the sentence changes with it.", done: "chosen",
  },
  {
    view: "translate", at: "#beam-scroll", see: "#beam-title", near: "#beam-controls", title: "It keeps several beginnings",
    text: "The likeliest first word is not always the start of the best sentence. So the model continues several beginnings side by side, and drops the weak ones.",
    action: "Press Play, and watch the tree grow.", done: "play",
  },
  {
    view: "write", at: "#next-bars", see: "header", title: "A model that only writes",
    text: "This one has no source: it is a decoder alone, as in GPT, and it continues a text. The bars are its probabilities for the token to come.",
    action: "Click a bar to choose a token by hand, or press “One token” a few times.", done: ["token", "chosen"],
  },
  {
    view: "write", at: ".sliders", see: "header", near: "#next-title", title: "How daring may it be?",
    text: "The temperature makes likely tokens likelier, or all of them more alike. Top-k and top-p forbid the unlikely ones.",
    action: "Move the temperature to 2 and then to 0, and watch the bars.", done: "bars",
  },
  {
    view: "write", at: "#story", see: "header", near: "#play", title: "Where it was surprised",
    text: "Coloured tokens were unlikely, and chance chose them. One such token can turn the whole story.",
    action: "Press Write. Then click a coloured token, and choose what should have stood there.", done: ["chosen", "alternatives"],
  },
  {
    view: "inside", at: "#map", see: "#inside-tokens", title: "The machine as a map",
    text: "This is the drawing of the paper of 2017, with the layers and sizes of this very model. Every block is a few lines of code, and you can see its numbers.",
    action: "Click a block: an attention, a LayerNorm, a feed-forward.", done: "block",
  },
  {
    view: "inside", at: "#block", see: "#inside-tokens", title: "Attention, number by number",
    text: "Each token sends out a query, and each offers a key and a value. Where query and key fit, the value is taken along.",
    action: "Choose another head, and compare the weights.", done: "head", prepare: { kind: "sublayer", part: "self_attn" }, step: "Weights",
  },
  {
    view: "inside", at: ".way", see: "#inside-tokens", title: "An answer takes shape",
    text: "Each block adds a little to the token’s vector. Reading the vector half-way up shows what the model would say there: often nonsense at first, and near the top the answer.",
    action: "Click these lines from below upwards. Or click a block of the map, and press the arrow key upwards.", done: ["up", "block"],
  },
];

export class Tour {
  /** @param page {open(view), use(text), views}: what the tour does to the page. */
  constructor(page) {
    this.page = page;
    this.box = byId("tour");
    this.place = 0;
    byId("start-tour").addEventListener("click", () => {
      this.steps = STEPS.filter(({ view }) => page.entriesOf(view).length > 0);
      if (this.steps.length > 0) this.show(0);
    });
    document.addEventListener("keydown", (event) => event.key === "Escape" && this.close());
  }

  get isOpen() {
    return !this.box.hidden;
  }

  async show(place) {
    this.place = place;
    const step = this.steps[place];
    await this.page.open(step.view);
    if (step.step) this.page.views.inside.step = step.step;
    if (step.prepare && this.page.views.inside.trace) this.page.views.inside.select({ stack: "decoder", layer: 0, ...step.prepare });
    const button = (text, click, kind = "") => el(`button${kind}`, { type: "button", text, on: { click } });
    const isLast = place === this.steps.length - 1;
    this.box.replaceChildren(
      el("p.kicker", { text: `${place + 1} of ${this.steps.length}` }),
      el("h2", { id: "tour-title", text: step.title }),
      el("p", { id: "tour-text", text: step.text }),
      el("p.action", { id: "tour-action", text: step.action }),
      step.examples ? el("div.examples", {}, ...step.examples.map((text) => button(text, () => this.page.use(text)))) : "",
      el(
        "div.move",
        {},
        place > 0 ? button("Back", () => this.show(place - 1)) : "",
        isLast ? button("Done", () => this.close(), ".primary") : button("Next", () => this.show(place + 1), ".primary"),
        button("End the tour", () => this.close(), ".link"),
      ),
    );
    this.box.hidden = false;
    document.body.classList.add("touring");
    document.querySelector(".pointed")?.classList.remove("pointed");
    const target = document.querySelector(step.at);
    target.classList.add("pointed");
    // it stands at the lower edge, on the side where the place is not
    const { left, right } = target.getBoundingClientRect();
    this.box.classList.toggle("left", left + right > 1.2 * document.documentElement.clientWidth);
    const isCalm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    const isWide = matchMedia("(min-width: 900px)").matches;
    const seen = document.querySelector(isWide ? step.see : (step.near ?? step.at));
    seen.scrollIntoView({ block: "start", behavior: isCalm ? "auto" : "smooth" });
    this.box.querySelector(".primary").focus({ preventScroll: true });
  }

  /** A view reports what the user did. */
  report(name) {
    if (this.isOpen && [this.steps[this.place].done].flat().includes(name)) byId("tour-action").classList.add("done");
  }

  close() {
    if (!this.isOpen) return;
    this.box.hidden = true;
    document.body.classList.remove("touring");
    document.querySelector(".pointed")?.classList.remove("pointed");
    byId("start-tour").focus({ preventScroll: true });
  }
}
