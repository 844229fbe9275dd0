// Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
/**
 * A tokenizer.json of the tokenizers library: text to ids and back.
 *
 * What hf_scratch trains is read: byte-level BPE, words, characters. A file that needs more is refused: its tokens
 * would be wrong. Characters are code points, and not JavaScript's UTF-16 units.
 */

const GPT2 = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

/** GPT-2's alphabet: a printable character for each byte. */
const BYTES = (() => {
  const isPrintable = (byte) => (byte > 32 && byte < 127) || (byte > 160 && byte !== 173);
  let others = 256;
  return Array.from({ length: 256 }, (_, byte) => String.fromCodePoint(isPrintable(byte) ? byte : others++));
})();
const BYTE_OF = new Map(BYTES.map((char, byte) => [char, byte]));

function unknown(part, type) {
  return new Error(`tokenizer.json has the ${part} "${type}", which is not known here.`);
}

/** A pattern of the library (Oniguruma) as a RegExp: what \s, \w and \d match is wider there than in JavaScript. */
function compile(pattern) {
  const word = "[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}²³¹¼½¾]";
  const classes = { s: "\\p{White_Space}", S: "\\P{White_Space}", d: "\\p{Nd}", w: word };
  return new RegExp(pattern.replace(/\\(.)/gsu, (escape, letter) => classes[letter] ?? escape), "gv");
}

const escapePattern = (text) => text.replace(/[\\^$.*+?()[\]{}|\/]/gu, "\\$&");

/** The pieces of a text between the matches of a pattern, and the matches. */
function cut(text, pattern) {
  const pieces = [];
  let end = 0;
  for (const match of text.matchAll(pattern)) {
    pieces.push(text.slice(end, match.index), match[0]);
    end = match.index + match[0].length;
  }
  return [...pieces, text.slice(end)].filter((piece) => piece !== "");
}

// text to text
const NORMALIZERS = { Prepend: ({ prepend }) => (text) => prepend + text };

// pieces of text to pieces
const PRE_TOKENIZERS = {
  ByteLevel: ({ add_prefix_space: addsSpace, use_regex: splits }) => {
    const pattern = compile(GPT2);
    const toBytes = (piece) => Array.from(new TextEncoder().encode(piece), (byte) => BYTES[byte]).join("");
    return (pieces) =>
      pieces
        .map((piece) => (addsSpace && !piece.startsWith(" ") ? ` ${piece}` : piece))
        .flatMap((piece) => (splits ? piece.match(pattern) : [piece]))
        .map(toBytes);
  },
  Metaspace: ({ replacement, prepend_scheme: scheme, split }) => {
    if (split || scheme === "first") throw unknown("pre-tokenizer", `Metaspace, ${split ? "split" : scheme}`);
    return (pieces) =>
      pieces
        .map((piece) => piece.replaceAll(" ", replacement))
        .map((piece) => (scheme === "always" && !piece.startsWith(replacement) ? replacement + piece : piece));
  },
  Split: ({ pattern, behavior, invert }) => {
    if (invert || behavior !== "Isolated") throw unknown("pre-tokenizer", `Split, ${behavior}`);
    const compiled = compile(pattern.Regex ?? escapePattern(pattern.String));
    return (pieces) => pieces.flatMap((piece) => cut(piece, compiled));
  },
};

// tokens to pieces of text
const DECODERS = {
  ByteLevel: () => {
    const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
    const toBytes = (token) => {
      const bytes = Array.from(token, (char) => BYTE_OF.get(char));
      return bytes.includes(undefined) ? Array.from(new TextEncoder().encode(token)) : bytes;
    };
    return (tokens) => [decoder.decode(Uint8Array.from(tokens.flatMap(toBytes)))];
  },
  Fuse: () => (tokens) => [tokens.join("")],
  Strip: ({ content, start, stop }) => {
    const mark = `(?:${escapePattern(content)})`;
    const pattern = new RegExp(`^${mark}{0,${start}}|${mark}{0,${stop}}$`, "gu");
    return (tokens) => tokens.map((token) => token.replace(pattern, ""));
  },
  Metaspace: ({ replacement, prepend_scheme: scheme }) => (tokens) =>
    tokens.map((token, i) => token.replaceAll(replacement, i === 0 && scheme !== "never" ? "" : " ")),
};

// a piece of text to ids
const MODELS = {
  BPE: ({ vocab, merges, unk_token: unknownToken = null, ...options }) => {
    const used = Object.keys(options).find((option) => option !== "type" && options[option]);
    if (used) throw unknown("option of BPE", used);
    const ranks = new Map(merges.map((merge, rank) => [[merge].flat().join(" "), rank]));
    const toSymbol = (char) => (vocab.has(char) ? char : unknownToken);
    return (piece) => {
      const symbols = Array.from(piece, toSymbol).filter((symbol) => symbol !== null);
      for (;;) {
        let [best, place] = [Infinity, -1];
        for (let i = 0; i + 1 < symbols.length; i++) {
          const rank = ranks.get(`${symbols[i]} ${symbols[i + 1]}`);
          if (rank < best) [best, place] = [rank, i];
        }
        if (place < 0) return symbols.map((symbol) => vocab.get(symbol));
        symbols.splice(place, 2, symbols[place] + symbols[place + 1]);
      }
    };
  },
  WordLevel: ({ vocab, unk_token: unknownToken }) => (piece) => {
    const id = vocab.get(piece) ?? vocab.get(unknownToken);
    if (id === undefined) throw new Error(`The model's vocabulary lacks "${piece}".`);
    return [id];
  },
};

// ids to the ids that the model reads
const POST_PROCESSORS = {
  ByteLevel: () => (ids) => ids, // it only moves offsets
  TemplateProcessing: ({ single, special_tokens: special }) => {
    const parts = single.map(({ SpecialToken: token }) => token && special[token.id].ids);
    return (ids) => parts.flatMap((part) => part ?? ids);
  },
};

/** The function that a part of tokenizer.json stands for; a missing part changes nothing. */
function make(kinds, part, name, missing = (value) => value) {
  if (!part) return missing;
  if (part.type === "Sequence") {
    const steps = (part[`${name}s`] ?? part.pretokenizers ?? part.processors).map((each) => make(kinds, each, name));
    return (value) => steps.reduce((result, step) => step(result), value);
  }
  if (!Object.hasOwn(kinds, part.type)) throw unknown(name, part.type);
  return kinds[part.type](part);
}

/** Text to ids and back. */
export class Tokenizer {
  /** @param {object} file a parsed tokenizer.json. */
  constructor({ added_tokens: added, model, ...file }) {
    const vocab = new Map(Object.entries(model.vocab));
    this.normalize = make(NORMALIZERS, file.normalizer, "normalizer");
    this.preTokenize = make(PRE_TOKENIZERS, file.pre_tokenizer, "pre-tokenizer");
    this.toIds = make(MODELS, { ...model, vocab }, "model");
    this.postProcess = make(POST_PROCESSORS, file.post_processor, "post-processor");
    this.toText = make(DECODERS, file.decoder, "decoder", (tokens) => [tokens.join(" ")]);
    const given = added.filter((token) => !token.normalized);
    const normalized = added
      .filter((token) => token.normalized)
      .map((token) => ({ ...token, content: this.normalize(token.content) }));
    this.tokens = new Map([...vocab].map(([token, id]) => [id, token]));
    [...given, ...normalized].forEach(({ id, content }) => this.tokens.set(id, content));
    this.size = [...this.tokens.keys()].reduce((largest, id) => Math.max(largest, id), -1) + 1;
    this.special = new Set(added.filter((token) => token.special).map((token) => token.id));
    this.added = [findAdded(given), findAdded(normalized)];
  }

  /** Text to ids. Added tokens are split off first; each piece between them is normalized, and split again. */
  encode(text) {
    const [given, normalized] = this.added;
    const toIds = (piece) => this.preTokenize([piece]).flatMap(this.toIds);
    const ids = given(text, (piece) => normalized(this.normalize(piece), toIds));
    return this.postProcess(ids.filter((id) => id !== undefined));
  }

  /** ids to text. */
  decode(ids, skipSpecialTokens = true) {
    const kept = ids.filter((id) => this.tokens.has(id) && !(skipSpecialTokens && this.special.has(id)));
    return this.toText(kept.map((id) => this.tokens.get(id))).join("");
  }

  /** A token on one line: "·" for a space, "↵" for the end of a line, U+00A0 for a no-break space. */
  read(id) {
    // a decoder drops the space before the first token, so the token is read behind itself
    const [once, twice] = [[id], [id, id]].map((ids) => Array.from(this.decode(ids, false)));
    const text = twice.slice(once.length).join("");
    const name = (char) => `U+${char.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;
    const line = text.replaceAll(" ", "·").replaceAll("\n", "↵").replaceAll("\t", "⇥");
    return line.replace(/[\p{C}\p{Z}]/gu, name) || "·";
  }
}

/** A function from a text to ids: those of added tokens, and what `encodeRest` returns for the pieces between them. */
function findAdded(tokens) {
  const refused = tokens.find((token) => token.single_word || token.lstrip || token.rstrip);
  if (refused) throw unknown("added token with single_word, lstrip or rstrip", refused.content);
  const ids = new Map(tokens.map((token) => [token.content, token.id]));
  const longestFirst = [...ids.keys()].sort((a, b) => b.length - a.length).map(escapePattern);
  const pattern = compile(longestFirst.join("|") || "(?!)");
  return (text, encodeRest) =>
    cut(text, pattern).flatMap((piece) => (ids.has(piece) ? [ids.get(piece)] : encodeRest(piece)));
}
