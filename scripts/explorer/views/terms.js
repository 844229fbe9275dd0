// Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
/** The words that a reader may not know, explained where they stand: pointing at one, or focusing it, opens a note. */

import { byId } from "./dom.js";

const TERMS = {
  token: "A token is a word or a piece of a word. The model reads and writes tokens; it knows a few thousand of them. A dot marks a space before it; <s> stands for the start of a text, and </s> for its end.",
  probability: "How sure the model is of a token, given all that stands before it. The probabilities of all tokens sum to 100 %.",
  nats: "The score is the mean of the logarithms of the tokens’ probabilities, in nats. 0 would be certain; −0.7 is a probability of one half for each token; −2.3 is one tenth.",
  "cross-attention": "For each word it writes, the decoder weighs all words of the source. The weights of one word sum to 100 %; a thicker line is a larger weight.",
  head: "Attention runs several times side by side, each with its own weights. Each of these is a head, and each may look for something else.",
  layer: "The same kind of block, stacked: each layer works on what the layer below it made.",
  "beam search": "Taking the likeliest word each time may end badly. So several beginnings, the beams, are continued side by side, and the best whole sentence wins.",
  temperature: "The scores are divided by it before they become probabilities. Below 1, likely tokens become likelier; above 1, all become more alike; at 0, only the likeliest can come.",
  "top-k": "Only the k likeliest tokens can come. Off: all of them.",
  "repetition penalty": "Before anything else, the positive scores of tokens that are in the text already are divided by it, and their negative scores multiplied. Above 1 they come again less often.",
  "top-p": "Only the fewest tokens that together reach the probability p can come. So there are few where the model is sure, and many where it is not.",
  logit: "The score that the model gives a token before softmax. Only differences count: 1 more makes a token 2.7 times as likely.",
  softmax: "e to the power of each score, divided by the sum of all: positive numbers that sum to 1. The largest score gets the largest share.",
  embedding: "A list of numbers, learned in training, that stands for a token. Tokens that are used alike get lists that are alike.",
  LayerNorm: "Takes the mean from a vector and divides by its standard deviation, so that all vectors have about one size.",
  "residual stream": "The vector of a token on its way up. Each block reads it and adds its output to it; nothing is replaced, so what was there stays readable.",
  "logit lens": "A trick: read the vector half-way up as if it were the last one. One sees the answer take shape, layer by layer.",
  mask: "In training, the model sees the whole text at once. The mask hides what comes after each token, or it would only have to copy it.",
};

/** Let the buttons with `data-term` open their notes. */
export function explainTerms() {
  const tooltip = byId("tooltip");
  let shown = null;
  const open = (button) => {
    if (button === shown) return;
    close();
    shown = button;
    tooltip.textContent = TERMS[button.dataset.term];
    tooltip.hidden = false;
    button.setAttribute("aria-describedby", "tooltip");
    const { left, bottom, top } = button.getBoundingClientRect();
    const box = tooltip.getBoundingClientRect();
    const x = Math.max(8, Math.min(left, document.documentElement.clientWidth - box.width - 8));
    tooltip.style.setProperty("left", `${x}px`);
    tooltip.style.setProperty("top", `${bottom + 6 + box.height > innerHeight ? top - box.height - 6 : bottom + 6}px`);
  };
  const close = () => {
    shown?.removeAttribute("aria-describedby");
    shown = null;
    tooltip.hidden = true;
  };
  const termOf = (event) => event.target.closest?.("[data-term]");
  for (const event of ["pointerover", "focusin", "click"]) document.addEventListener(event, (each) => termOf(each) && open(termOf(each)));
  for (const event of ["pointerout", "focusout"]) document.addEventListener(event, (each) => termOf(each) && close());
  document.addEventListener("keydown", (event) => event.key === "Escape" && close());
  addEventListener("scroll", close, { passive: true });
}
