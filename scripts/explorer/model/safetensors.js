// Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
/** The safetensors format: eight bytes with the header's length, the header as JSON, then the bytes of the tensors. */

const FLOATS = { F32: [4, (bytes) => new Float32Array(bytes)], BF16: [2, fromBfloat16], F16: [2, fromFloat16] };

/**
 * Read a file of weights.
 *
 * @param {ArrayBuffer} buffer the file.
 * @returns {Map<string, {shape: number[], data: Float32Array, dtype: string}>} the tensors by name, in float32.
 * @throws {Error} the file is cut short or damaged, or holds numbers that are no floats or not finite.
 */
export function readSafetensors(buffer) {
  const length = buffer.byteLength < 8 ? Infinity : Number(new DataView(buffer).getBigUint64(0, true));
  if (8 + length > buffer.byteLength) throw new Error("The weights are cut short, or are no safetensors file.");
  const { __metadata__, ...header } = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, length)));
  const tensors = new Map();
  for (const [name, { dtype, shape, data_offsets: offsets }] of Object.entries(header)) {
    if (!Object.hasOwn(FLOATS, dtype)) {
      throw new Error(`The tensor "${name}" has the type ${dtype}: only float32, float16 and bfloat16 are read here.`);
    }
    const [size, convert] = FLOATS[dtype];
    const [begin, end] = offsets.map((offset) => 8 + length + offset);
    if (end > buffer.byteLength || end - begin !== size * shape.reduce((a, b) => a * b, 1)) {
      throw new Error(`The weights are cut short or damaged: the tensor "${name}" is not whole.`);
    }
    const data = convert(buffer.slice(begin, end));
    if (!data.every(Number.isFinite)) throw new Error(`The weights are damaged: "${name}" holds numbers that are not finite.`);
    tensors.set(name, { shape, dtype, data });
  }
  return tensors;
}

/** bfloat16 is the upper half of a float32. */
function fromBfloat16(bytes) {
  const halves = new Uint16Array(bytes);
  const bits = new Uint32Array(halves.length);
  for (let i = 0; i < bits.length; i++) bits[i] = halves[i] << 16;
  return new Float32Array(bits.buffer);
}

/** float16: a sign, five bits of exponent, ten of fraction. */
function fromFloat16(bytes) {
  return Float32Array.from(new Uint16Array(bytes), (half) => {
    const sign = half & 0x8000 ? -1 : 1;
    const exponent = (half >> 10) & 31;
    const fraction = (half & 1023) / 1024;
    if (exponent === 31) return fraction ? NaN : sign * Infinity;
    return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction) : 2 ** -14 * fraction);
  });
}
