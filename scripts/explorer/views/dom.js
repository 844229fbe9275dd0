// Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
/** Small parts that the views share. Text is always set as text, never as markup. */

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

/**
 * An HTML element.
 *
 * @param {string} tag the element's name, with classes behind dots: "p.note".
 * @param {object} attributes `on` holds listeners; `style` holds CSS properties; `text` is its text.
 * @param {...(Node | string)} children strings become text.
 */
export function el(tag, attributes = {}, ...children) {
  return build((name) => document.createElement(name), tag, attributes, children);
}

/** An SVG element, as `el`. */
export function svg(tag, attributes = {}, ...children) {
  return build((name) => document.createElementNS(SVG, name), tag, attributes, children);
}

function build(create, tag, { on = {}, style = {}, text, class: more = null, ...attributes }, children) {
  const [name, ...classes] = tag.split(".");
  const element = create(name);
  element.classList.add(...classes, ...(more ? [more] : []));
  for (const [event, listener] of Object.entries(on)) element.addEventListener(event, listener);
  for (const [property, value] of Object.entries(style)) element.style.setProperty(property, value);
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) element.setAttribute(key, value === true ? "" : value);
  }
  if (text !== undefined) element.textContent = text;
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** A probability in percent. A small one does not become 0. */
export function percent(share) {
  if (share === 0) return "0 %";
  if (share < 0.001) return "< 0.1 %";
  return `${(100 * share).toFixed(share < 0.0995 || (share > 0.995 && share < 0.9995) ? 1 : 0)} %`;
}

/** A number with a real minus sign, which 0 does not get. */
export const decimal = (number, digits = 2) => number.toFixed(digits).replace(/^-(?=[0.]*[1-9])/, "−").replace("-", "");

/** How much colour a token gets: none if it was certain, all at a probability of one in a thousand. */
export const tint = (probability) => `${Math.round(Math.min(1, -Math.log(probability) / Math.log(1000)) * 70)}%`;

/** A token's text, its leading space as a pale dot. */
export function tokenText(text) {
  const hasSpace = text.startsWith("·") && text.length > 1;
  return el("bdi", {}, hasSpace ? el("span.space", { text: "·" }) : null, hasSpace ? text.slice(1) : text);
}

/** A token as a running text shows it. */
export const plain = (text) => text.replaceAll("·", " ");

/**
 * Bars of probabilities, one row for each alternative. `update` moves the bars of the same rows.
 *
 * @param {{text, token, probability, shaped}[]} alternatives `shaped` (optional) is drawn as the bar, and the model's own
 *   probability as a mark.
 * @param {(alternative) => void} onChoose called with the alternative that is clicked.
 */
export function makeBars(alternatives, { chosen = null, onChoose = null, label }) {
  const rows = alternatives.map((alternative) => {
    const fill = el("span.fill");
    const mark = el("span.mark");
    const number = el("span.number");
    const row = el(
      onChoose ? "button.bar" : "div.bar",
      { type: onChoose && "button", "aria-current": alternative.token === chosen && "true", on: onChoose ? { click: () => onChoose(alternative) } : {} },
      el("span.name", {}, tokenText(alternative.text)),
      el("span.track", { "aria-hidden": "true" }, fill, mark),
      number,
    );
    return { row, fill, mark, number, alternative };
  });
  const element = el("div.bars", { role: "group", "aria-label": label }, ...rows.map(({ row }) => row));
  const update = (shapedOf = ({ shaped }) => shaped) => {
    for (const { row, fill, mark, number, alternative } of rows) {
      const shaped = shapedOf(alternative);
      const shown = shaped ?? alternative.probability;
      fill.style.setProperty("width", `${100 * shown}%`);
      mark.style.setProperty("left", `${100 * alternative.probability}%`);
      mark.hidden = shaped === undefined;
      number.textContent = percent(shown);
      row.classList.toggle("impossible", shown === 0);
    }
  };
  update();
  return { element, update };
}

/**
 * A row of buttons of which one is pressed.
 *
 * @param {{value, text}[]} choices
 * @param {(value) => void} onChange
 */
export function makeChoice(label, choices, value, onChange) {
  const buttons = choices.map((choice) =>
    el("button", {
      type: "button",
      text: choice.text,
      "aria-pressed": String(choice.value === value),
      on: {
        click: () => {
          select(choice.value);
          onChange(choice.value);
        },
      },
    }),
  );
  const select = (selected) =>
    buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(choices[i].value === selected)));
  const element = el("div.choice", { role: "group", "aria-label": label }, el("span.choice-label", { text: label }), ...buttons);
  return { element, select };
}

/** Numbers from 1 as choices, the values from 0. */
export const numbered = (count) => Array.from({ length: count }, (_, i) => ({ value: i, text: String(i + 1) }));

/** One of the matching elements is in the tab order; the arrow keys lead to the others. */
export function rove(container, selector, keys = { ArrowRight: 1, ArrowLeft: -1 }) {
  const items = () => [...container.querySelectorAll(selector)];
  const settle = (current) => items().forEach((item) => item.setAttribute("tabindex", item === current ? 0 : -1));
  settle(items()[0]);
  if (container.dataset.roves) return;
  container.dataset.roves = "true";
  container.addEventListener("focusin", (event) => event.target.matches(selector) && settle(event.target));
  container.addEventListener("keydown", (event) => {
    const all = items();
    const place = all.indexOf(event.target);
    const last = all.length - 1;
    const next = { Home: 0, End: last }[event.key] ?? place + (keys[event.key] ?? NaN);
    if (place < 0 || Number.isNaN(next)) return;
    event.preventDefault();
    all[Math.max(0, Math.min(last, next))].focus();
  });
}

/** Other children for a container. The focus stays in it: on the element of the same name, or at the same place. */
export function redraw(container, ...children) {
  const places = () => [...container.querySelectorAll("button, [tabindex]")];
  const nameOf = (each) => each.ariaLabel ?? each.textContent;
  const place = places().indexOf(document.activeElement);
  const name = nameOf(document.activeElement);
  container.replaceChildren(...children);
  if (place >= 0) (places().find((each) => nameOf(each) === name) ?? places()[place])?.focus({ preventScroll: true });
}

/** The last call counts, after a pause. */
export function debounce(milliseconds, call) {
  let timer;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => call(...given), milliseconds);
  };
}

/** An equation: `_x` and `_{xyz}` are set below the line, `^x` above it, and single letters in italics. */
export function equation(text) {
  const parts = text.split(/([_^](?:\{[^}]*\}|.))/u).filter(Boolean);
  const italic = (piece) =>
    piece.split(/(?<![\p{L}])(\p{L})(?![\p{L}(])/u).map((each, i) => (i % 2 ? el("i", { text: each }) : each));
  const nodes = parts.flatMap((part) => {
    if (!/^[_^]./u.test(part)) return italic(part);
    return [el(part[0] === "_" ? "sub" : "sup", {}, ...italic(part.slice(1).replace(/^\{|\}$/gu, "")))];
  });
  return el("p.equation", {}, ...nodes);
}
