// Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
/** The tree of beams, which grows step by step, and the translations it ends in. */

import { decimal, el, makeChoice, numbered, percent, plain, svg } from "./dom.js";
import { makeTable } from "./save.js";

const [COLUMN, ROW, WIDTH, HEIGHT, MARGIN, FIRST] = [160, 30, 130, 22, 12, 96]; // pixels
const PACE = 700; // milliseconds a step

export class BeamTree {
  constructor(scroll, controls, found, report) {
    Object.assign(this, { scroll, controls, found, report });
    this.steps = [];
    this.shown = 0; // steps that are drawn
    this.timer = null;
  }

  /** @param {(numBeams) => void} onBeams called when the user chooses another number of beams. */
  makeControls(numBeams, onBeams) {
    const button = (text, label, click) => el("button", { type: "button", text, "aria-label": label, on: { click } });
    this.playButton = button("Play", "Play the search", () => (this.timer ? this.pause() : this.play()));
    this.slider = el("input", { type: "range", min: 0, max: 0, value: 0, "aria-label": "Step of the search" });
    this.slider.addEventListener("input", () => {
      this.pause();
      this.goTo(Number(this.slider.value));
    });
    this.count = el("span.note");
    const step = (by) => () => {
      this.pause();
      this.goTo(this.shown + by);
      this.report("step");
    };
    const beams = makeChoice("beams", numbered(8).map(({ value, text }) => ({ value: value + 1, text })), numBeams, onBeams);
    const move = el("div.move", {}, this.playButton, button("◂", "One step back", step(-1)), button("▸", "One step on", step(1)), this.slider, this.count);
    this.controls.replaceChildren(beams.element, move);
  }

  clear() {
    this.pause();
    this.steps = [];
    this.scroll.replaceChildren();
    this.found.replaceChildren();
    if (this.slider) this.goTo(0);
  }

  /** Show a finished search as a whole. */
  show(model, result, steps, prefix) {
    this.pause();
    Object.assign(this, { model, result, steps });
    this.root = prefix.length ? `… ${plain(model.read(prefix.at(-1))).trim()}` : "start";
    this.place();
    this.makeNodes();
    this.slider.max = steps.length;
    this.found.replaceChildren(
      ...result.sequences.map((sequence, i) =>
        el(
          "li",
          {},
          el(
            "button",
            { type: "button", on: { click: () => this.highlight(i), pointerenter: () => this.highlight(i), focus: () => this.highlight(i) } },
            el("bdi", { text: sequence.text || "(no words)" }),
            el("span.number", { text: decimal(sequence.score) }),
          ),
        ),
      ),
    );
    this.highlight(0);
    this.goTo(steps.length);
  }

  /** Rows of the nodes: children of one node stand together, so that no lines cross. */
  place() {
    let above = [];
    this.rows = this.steps.map(({ candidates }) => {
      const parentRow = ({ parent }) => (parent < 0 ? 0 : above[parent]);
      const order = candidates.map((_, i) => i).sort((a, b) => parentRow(candidates[a]) - parentRow(candidates[b]) || a - b);
      above = candidates.map((_, i) => order.indexOf(i));
      return above;
    });
  }

  makeNodes() {
    const numRows = Math.max(1, ...this.rows.map((rows) => rows.length));
    const middle = MARGIN + (numRows * ROW) / 2;
    const at = (step, i) => {
      if (step < 0) return { x: MARGIN, y: middle };
      const top = middle - (this.rows[step].length * ROW) / 2;
      return { x: MARGIN + FIRST + 34 + step * COLUMN, y: top + (this.rows[step][i] + 0.5) * ROW };
    };
    const layer = svg("g");
    this.nodes = this.steps.map(({ candidates }, step) =>
      candidates.map((candidate, i) => {
        const { x, y } = at(step, i);
        const from = at(step - 1, candidate.parent);
        const start = from.x + (step === 0 ? FIRST : WIDTH);
        const text = this.model.read(candidate.token);
        const share = percent(Math.exp(candidate.log_probability));
        const half = (x - start) / 2;
        const node = svg(
          `g.node.${candidate.outcome}`,
          {},
          svg("path", { d: `M${start},${from.y}C${start + half},${from.y} ${x - half},${y} ${x},${y}` }),
          svg("rect", { x, y: y - HEIGHT / 2, width: WIDTH, height: HEIGHT, rx: 5 }),
          svg("text", { x: x + 7, y: y + 4, text: shorten(text, 8) }),
          svg("text.share", { x: x + WIDTH - 6, y: y + 4, "text-anchor": "end", text: share }),
          svg("title", { text: `${text}: ${share}; sum of log probabilities ${decimal(candidate.score)}; ${candidate.outcome}` }),
        );
        layer.append(node);
        return node;
      }),
    );
    const width = 2 * MARGIN + FIRST + 34 + this.steps.length * COLUMN;
    const height = 2 * MARGIN + numRows * ROW;
    this.scroll.replaceChildren(
      svg(
        "svg.tree",
        { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Tree of ${this.steps.length} steps; the translations it ends in are listed below` },
        svg("rect.root", { x: MARGIN, y: middle - HEIGHT / 2, width: FIRST, height: HEIGHT, rx: 5 }),
        svg("text", { x: MARGIN + FIRST / 2, y: middle + 4, "text-anchor": "middle", text: shorten(this.root, 11) }),
        layer,
      ),
    );
    this.scroll.scrollLeft = 0;
  }

  /** All candidates, as a table. */
  toTable() {
    const text = (candidate) => plain(this.model.read(candidate.token)).trim();
    const lines = this.steps.flatMap(({ candidates }, step) =>
      candidates.map((each) => [step + 1, text(each), each.parent < 0 ? "" : text(this.steps[step - 1].candidates[each.parent]), percent(Math.exp(each.log_probability)), decimal(each.score), each.outcome, each.final_score === null ? "" : decimal(each.final_score)]),
    );
    return makeTable([["step", "token", "after", "probability", "sum of logs", "outcome", "score"], ...lines], "Candidates of each step, best first");
  }

  /** Mark the way to one of the translations. */
  highlight(index) {
    this.nodes.flat().forEach((node) => node.classList.remove("best"));
    let { step, candidate } = this.result.sequences[index];
    for (; step >= 0 && candidate >= 0; candidate = this.steps[step--].candidates[candidate].parent) {
      this.nodes[step][candidate].classList.add("best");
      this.nodes[step][candidate].parentNode.append(this.nodes[step][candidate]); // above the others
    }
    [...this.found.children].forEach((item, i) => item.classList.toggle("best", i === index));
  }

  /** Draw the first steps only. */
  goTo(shown) {
    this.shown = Math.max(0, Math.min(this.steps.length, shown));
    this.nodes?.forEach((nodes, step) => nodes.forEach((node) => node.classList.toggle("later", step >= this.shown)));
    this.slider.value = this.shown;
    this.count.textContent = `step ${this.shown} of ${this.steps.length}`;
    this.found.classList.toggle("later", this.shown < this.steps.length);
  }

  play() {
    if (this.shown === this.steps.length) this.goTo(0);
    this.playButton.textContent = "Pause";
    this.timer = setInterval(() => {
      this.goTo(this.shown + 1);
      const right = MARGIN + FIRST + 34 + this.shown * COLUMN;
      this.scroll.scrollLeft = Math.max(0, right - this.scroll.clientWidth);
      if (this.shown === this.steps.length) this.pause();
    }, PACE);
    this.report("play");
  }

  pause() {
    clearInterval(this.timer);
    this.timer = null;
    if (this.playButton) this.playButton.textContent = "Play";
  }
}

function shorten(text, length) {
  const characters = [...text];
  return characters.length > length ? `${characters.slice(0, length - 1).join("")}…` : text;
}
