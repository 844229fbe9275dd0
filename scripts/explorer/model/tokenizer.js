// Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
/**
 * A tokenizer.json of the tokenizers library: text to ids and back.
 *
 * What hf_scratch trains (byte-level BPE, words, characters) and BERT's WordPiece are read. A file that needs more is
 * refused: its tokens would be wrong. Characters are code points, and not JavaScript's UTF-16 units.
 */

const GPT2 = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
const CHINESE = new RegExp(
  "[\\u3400-\\u4DBF\\u4E00-\\u9FFF\\uF900-\\uFAFF\\u{20000}-\\u{2A6DF}\\u{2A700}-\\u{2B81F}\\u{2B920}-\\u{2CEAF}" +
    "\\u{2F800}-\\u{2FA1F}]",
  "gu",
);

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
  try {
    return new RegExp(pattern.replace(/\\(.)/gsu, (escape, letter) => classes[letter] ?? escape), "gv");
  } catch {
    throw unknown("pattern", pattern);
  }
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

const lowercase = (text) => Array.from(text, (char) => char.toLowerCase()).join("");

// text to text
const NORMALIZERS = {
  Prepend: ({ prepend }) => (text) => prepend + text,
  BertNormalizer: (options) => (text) => {
    if (options.clean_text) {
      text = text.replace(/[\0\uFFFD]|(?![\t\n\r])[\p{Cc}\p{Cf}\p{Co}]/gu, "").replace(/\p{White_Space}/gu, " ");
    }
    if (options.handle_chinese_chars) text = text.replace(CHINESE, " $& ");
    if (options.strip_accents ?? options.lowercase) text = text.normalize("NFD").replace(/\p{Mn}/gu, "");
    return options.lowercase ? lowercase(text) : text;
  },
};

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
  BertPreTokenizer: () => (pieces) =>
    pieces.flatMap((piece) => piece.split(/\p{White_Space}/u)).flatMap((word) => cut(word, /[\p{P}!-\/:-@[-`{-~]/gu)),
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
  WordPiece: ({ prefix, cleanup }) => {
    const marks = [" .", " ?", " !", " ,", " ' ", " n't", " 'm", " do not", " 's", " 've", " 're"];
    const closeUp = (text, mark) => text.replaceAll(mark, mark === " do not" ? " don't" : mark.trim());
    const space = (token) => (token.startsWith(prefix) ? token.slice(prefix.length) : ` ${token}`);
    return (tokens) =>
      tokens
        .map((token, i) => (i === 0 ? token : space(token)))
        .map((text) => (cleanup ? marks.reduce(closeUp, text) : text));
  },
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
  WordLevel: ({ vocab, unk_token: unknownToken }) => (piece) => [vocab.get(piece) ?? vocab.get(unknownToken)],
  WordPiece: ({ vocab, unk_token: unknownToken, continuing_subword_prefix: prefix, ...options }) => (piece) => {
    const chars = Array.from(piece);
    const ids = [];
    for (let start = 0, end = chars.length; start < chars.length; [start, end] = [end, chars.length]) {
      const token = () => (start > 0 ? prefix : "") + chars.slice(start, end).join("");
      while (end > start && !vocab.has(token())) end--;
      if (end === start || chars.length > options.max_input_chars_per_word) return [vocab.get(unknownToken)];
      ids.push(vocab.get(token()));
    }
    return ids;
  },
};

// ids to the ids that the model reads
const POST_PROCESSORS = {
  ByteLevel: () => (ids) => ids, // it only moves offsets
  TemplateProcessing: ({ single, special_tokens: special }) => (ids) =>
    single.flatMap(({ SpecialToken: token }) => (token ? special[token.id].ids : ids)),
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
  encode(text, addSpecialTokens = true) {
    const [given, normalized] = this.added;
    const toIds = (piece) => this.preTokenize([piece]).flatMap(this.toIds);
    const ids = given(text, (piece) => normalized(this.normalize(piece), toIds)).filter((id) => id !== undefined);
    return addSpecialTokens ? this.postProcess(ids) : ids;
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
