// Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
/** Any figure of the page as a picture, SVG or PNG, with its labels as they are shown; numbers as JSON or as a table. */

import { el, svg } from "./dom.js";

/** What is shown: the files are named after it. */
export const subject = { model: "", text: "" };

const PAD = 16; // pixels around a picture
const LETTER = 7.5; // pixels of a letter of its title
const SHARPNESS = 2; // pixels of a PNG for each of the page
const STYLES = ["fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-linecap", "stroke-opacity", "opacity", "font-family", "font-size", "font-style", "font-weight"];

/**
 * A small menu of a figure.
 *
 * @param {string} name what the figure shows, for the file's name and the menu's.
 * @param {() => Element} figure called when a picture is saved.
 * @param {() => Element} [makeTable] the figure's numbers as a table, which the menu shows and hides.
 */
export function makeMenu(name, figure, makeTable = null) {
  const button = (text, click) => el("button", { type: "button", text, on: { click } });
  const show = ({ target }) => {
    const isShown = menu.querySelector("table");
    menu.querySelector(".numbers-table").replaceChildren(...(isShown ? [] : [makeTable()]));
    target.setAttribute("aria-expanded", String(!isShown));
  };
  const picture = () => toSvg(figure(), `${subject.model} · ${name}`, subject.text);
  const menu = el(
    "details.more",
    {},
    el("summary", { "aria-label": `${name}: table and pictures`, title: "Table and pictures", text: "⋯" }),
    el("div.move", {}, makeTable ? button("Show as table", show) : null, button("Save SVG", () => saveSvg(picture(), name)), button("Save PNG", () => savePng(picture(), name))),
    el("div.scroll.numbers-table"),
  );
  return menu;
}

/** A table whose first row and first column are headers. */
export function makeTable([head, ...rows], caption) {
  const columns = el("tr", {}, ...head.map((text) => el("th", { scope: "col", text })));
  const line = ([name, ...cells]) => el("tr", {}, el("th", { scope: "row", text: name }), ...cells.map((text) => el("td", { text })));
  return el("table", {}, el("caption", { text: caption }), columns, ...rows.map(line));
}

/** A tensor {shape, data} as lists of lists; a masked score becomes null. */
export function toLists({ shape: [length, ...rest], data }) {
  if (rest.length === 0) return Array.from(data, (number) => (Number.isFinite(number) ? number : null));
  const size = data.length / length;
  return Array.from({ length }, (_, i) => toLists({ shape: rest, data: data.subarray(i * size, (i + 1) * size) }));
}

export function saveJson(numbers, name) {
  const plain = (_, value) => (ArrayBuffer.isView(value?.data) ? toLists(value) : value);
  save(new Blob([JSON.stringify({ ...subject, ...numbers }, plain)], { type: "application/json" }), name, "json");
}

function save(blob, name, ending) {
  const words = [subject.model, subject.text.slice(0, 40), name].map((each) => each.replace(/[^\p{L}\p{N}.-]+/gu, "_").replace(/^_|_$/g, ""));
  const href = URL.createObjectURL(blob);
  el("a", { href, download: `${words.filter(Boolean).join("_")}.${ending}` }).click();
  setTimeout(() => URL.revokeObjectURL(href), 60_000);
}

const write = (picture) => new XMLSerializer().serializeToString(picture);

const saveSvg = (picture, name) => save(new Blob([write(picture)], { type: "image/svg+xml" }), name, "svg");

async function savePng(picture, name) {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(write(picture))}`;
  await image.decode();
  const canvas = el("canvas", { width: SHARPNESS * image.width, height: SHARPNESS * image.height });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  canvas.toBlob((blob) => save(blob, name, "png"));
}

const pixel = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });

/** A colour of CSS as SVG's other readers know it too. */
function toRgb(color) {
  if (!color || color === "none") return "none";
  pixel.clearRect(0, 0, 1, 1);
  pixel.fillStyle = color;
  pixel.fillRect(0, 0, 1, 1);
  const [r, g, b, alpha] = pixel.getImageData(0, 0, 1, 1).data;
  return alpha === 0 ? "none" : `rgba(${r},${g},${b},${+(alpha / 255).toFixed(3)})`;
}

/** An element of the page, drawn again: boxes, borders, texts, canvases and SVG, as they stand; all that scrolls is whole. */
function toSvg(element, title, text) {
  const from = element.getBoundingClientRect();
  const parts = [];
  let [right, bottom] = [LETTER * title.length, 0];
  const place = ({ left, top, width, height }) => {
    right = Math.max(right, left - from.left + width);
    bottom = Math.max(bottom, top - from.top + height);
    return { x: left - from.left, y: top - from.top, width, height };
  };
  const drawText = (node) => {
    const parent = node.parentElement;
    const style = getComputedStyle(parent);
    const range = document.createRange();
    range.selectNodeContents(node);
    const [box] = range.getClientRects();
    let text = node.textContent.trimEnd();
    if (!box || text.trim() === "") return;
    const isUpright = style.writingMode !== "horizontal-tb";
    const room = parent.closest(".columns > *, .rows > *, .bar .name")?.getBoundingClientRect();
    const [long, most] = isUpright ? [box.height, room?.height] : [box.width, room?.width];
    if (most && long > most + 1) text = `${text.slice(0, Math.floor((text.length * most) / long) - 1)}…`;
    const { x, y, width, height } = place(isUpright && room ? room : box);
    const font = Object.fromEntries(STYLES.filter((name) => name.startsWith("font")).map((name) => [name, style[name]]));
    const at = isUpright ? { transform: `translate(${x + width / 2},${y + height}) rotate(-90)` } : { x, y: y + height / 2 };
    parts.push(svg("text", { ...at, ...font, fill: toRgb(style.color), "dominant-baseline": "central", "xml:space": "preserve", text }));
  };
  const drawPicture = (node) => {
    const copy = node.cloneNode(true);
    const copies = [copy, ...copy.querySelectorAll("*")];
    [node, ...node.querySelectorAll("*")].forEach((each, i) => {
      const style = getComputedStyle(each);
      for (const name of STYLES) copies[i].setAttribute(name, /^(fill|stroke)$/.test(name) ? toRgb(style[name]) : style[name]);
      copies[i].removeAttribute("class");
    });
    for (const [name, value] of Object.entries({ ...place(node.getBoundingClientRect()), overflow: "visible" })) copy.setAttribute(name, value);
    parts.push(copy);
  };
  const visit = (node) => {
    if (node.nodeType === Node.TEXT_NODE) return drawText(node);
    if (!(node instanceof Element) || node.matches("details, .pad") || !node.checkVisibility({ opacityProperty: true, visibilityProperty: true })) return;
    const box = node.getBoundingClientRect();
    if (node.localName === "svg") return drawPicture(node);
    if (node.localName === "canvas") {
      const { x, y, width, height } = place(box);
      const copy = el("canvas", { width: Math.ceil(width), height: Math.ceil(height) });
      const context = copy.getContext("2d");
      context.imageSmoothingEnabled = false;
      context.drawImage(node, 0, 0, copy.width, copy.height);
      return parts.push(svg("image", { x, y, width, height, href: copy.toDataURL() }));
    }
    const style = getComputedStyle(node);
    const [fill, stroke] = [toRgb(style.backgroundColor), parseFloat(style.borderTopWidth) ? toRgb(style.borderTopColor) : "none"];
    if (fill !== "none" || stroke !== "none") parts.push(svg("rect", { ...place(box), rx: parseFloat(style.borderTopLeftRadius) || 0, fill, stroke, "stroke-width": parseFloat(style.borderTopWidth) || 0 }));
    node.childNodes.forEach(visit);
  };
  visit(element);
  const page = getComputedStyle(document.body);
  const most = Math.floor(right / LETTER);
  const heads = [title, text.length > most ? `${text.slice(0, most - 1)}…` : text].filter(Boolean);
  const top = PAD + 20 * heads.length;
  const size = { width: Math.ceil(right) + 2 * PAD, height: Math.ceil(bottom) + top + PAD };
  return svg(
    "svg",
    { xmlns: "http://www.w3.org/2000/svg", viewBox: `0 0 ${size.width} ${size.height}`, ...size },
    svg("title", { text: heads.join(": ") }),
    svg("rect", { ...size, fill: toRgb(page.backgroundColor) }),
    ...heads.map((line, i) => svg("text", { x: PAD, y: PAD + 8 + 20 * i, "font-family": page.fontFamily, "font-size": 13, fill: toRgb(page.color), text: line })),
    svg("g", { transform: `translate(${PAD},${top})` }, ...parts),
  );
}
