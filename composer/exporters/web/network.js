// @ts-check
/** The programs of a model: encoders, the state before the first token, and a step of the decoder. */

import * as ort from "./runtime/ort.wasm.bundle.min.mjs";

/** @typedef {import("onnxruntime-web").Tensor} Tensor */
/** @typedef {Record<string, Tensor>} Tensors */
/** @typedef {{tensors: Tensors, rows: number}} State all that a step reads beside ids, by name, of several rows */
/** @typedef {{logProbs: Float32Array[], logits: Float32Array[], attention: Float32Array[], state: State}} Step */

const WASM = "runtime/ort-wasm-simd-threaded.wasm";
const WEIGHTS = "weights.bin";

/** The programs, and what model.json says of them. */
export class Network {
  /** @param {any} settings @param {Record<string, any>} programs */
  constructor(settings, programs) {
    this.settings = settings;
    this.programs = programs;
  }

  /**
   * Load the programs of model.json.
   * @param {any} settings
   * @param {(file: string) => Promise<Uint8Array<ArrayBuffer>>} read
   */
  static async load(settings, read) {
    ort.env.wasm.numThreads = 1; // several need headers that a simple server does not send
    ort.env.wasm.wasmBinary = await read(WASM);
    const data = await checked(await read(WEIGHTS), WEIGHTS, settings);
    const externalData = [{ path: WEIGHTS, data }];
    /** @type {Record<string, any>} */
    const programs = {};
    for (const name of Object.keys(settings.programs)) {
      const options = { executionProviders: ["wasm"], externalData };
      const file = `${name}.onnx`;
      const program = await checked(await read(file), file, settings);
      programs[name] = await ort.InferenceSession.create(program, options);
    }
    return new Network(settings, programs);
  }

  /** @param {string} name @param {Tensors} tensors @returns {Promise<Tensors>} */
  async run(name, tensors) {
    const { inputs } = this.settings.programs[name];
    const read = inputs.map((/** @type {string} */ input) => [input, tensors[input]]);
    return this.programs[name].run(Object.fromEntries(read));
  }

  /** Return the state before the first token, of one row. @param {Tensors} sources @returns {Promise<State>} */
  async start(sources) {
    const memories = this.programs.encode ? await this.run("encode", sources) : {};
    const leaves = await this.run("start", { ...memories, ids: integers([this.settings.bos], [1, 1]) });
    const read = Object.entries({ ...memories, ...leaves });
    const names = this.settings.programs.step.inputs;
    return { tensors: Object.fromEntries(read.filter(([name]) => names.includes(name))), rows: 1 };
  }

  /** Read a token of each row. @param {number[]} tokens @param {State} state @returns {Promise<Step>} */
  async step(tokens, state) {
    const ids = integers(tokens, [tokens.length, 1]);
    const outputs = await this.run("step", { ...state.tensors, ids });
    const tensors = { ...state.tensors };
    for (const [name, tensor] of Object.entries(outputs))
      if (name.startsWith("next.")) tensors[name.replace("next", "state")] = tensor;
    return {
      logProbs: rowsOf(outputs.log_probs),
      logits: rowsOf(outputs.logits),
      attention: outputs.attention ? rowsOf(outputs.attention) : [],
      state: { tensors, rows: tokens.length },
    };
  }

  /** Return a state with these rows, in this order; all are of one sequence. @param {State} state @param {number[]} rows */
  select(state, rows) {
    if (state.rows === rows.length && rows.every((row, at) => row === at)) return state;
    const changed = new Set(this.settings.programs.step.outputs);
    const tensors = { ...state.tensors };
    for (const [name, tensor] of Object.entries(tensors))
      // rows that no step changes are equal
      if (changed.has(name.replace("state", "next")) || state.rows !== rows.length)
        tensors[name] = takeRows(tensor, rows);
    return { tensors, rows: rows.length };
  }
}

/**
 * Return a file of this export; refuse that of another, which sizes would not tell.
 * @param {Uint8Array<ArrayBuffer>} data @param {string} file @param {any} settings
 */
export async function checked(data, file, { files }) {
  if (!crypto.subtle) return data; // a page without https
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", data));
  const hash = Array.from(digest, byte => byte.toString(16).padStart(2, "0")).join("");
  if (hash !== files[file]) throw new Error(`${file} is not of this export: copy the whole folder again`);
  return data;
}

/** @param {number[]} values @param {number[]} dims @returns {Tensor} */
export function integers(values, dims) {
  return new ort.Tensor("int64", BigInt64Array.from(values, BigInt), dims);
}

/** @param {Float32Array} values @param {number[]} dims @returns {Tensor} */
export function floats(values, dims) {
  return new ort.Tensor("float32", values, dims);
}

/** @param {boolean[]} values @param {number[]} dims @returns {Tensor} */
export function booleans(values, dims) {
  return new ort.Tensor("bool", Uint8Array.from(values, Number), dims);
}

/** Return a source that is padded on the right. @param {Tensor} source (1, S, ...) @param {number} length @param {number} pad @returns {Tensor} */
export function padded(source, length, pad) {
  const [, own, ...rest] = source.dims;
  const size = source.size / own;
  if (source.type === "int64") {
    const more = new BigInt64Array((length - own) * size).fill(BigInt(pad));
    return integers([.../** @type {BigInt64Array} */ (source.data), ...more].map(Number), [1, length, ...rest]);
  }
  const values = new Float32Array(length * size).fill(NaN);
  values.set(/** @type {Float32Array} */ (source.data));
  return floats(values, [1, length, ...rest]);
}

/** @param {Tensor} tensor @param {number[]} rows @returns {Tensor} */
function takeRows(tensor, rows) {
  const data = /** @type {Float32Array} */ (tensor.data);
  const size = data.length / tensor.dims[0];
  const taken = new /** @type {Float32ArrayConstructor} */ (data.constructor)(rows.length * size);
  rows.forEach((row, at) => taken.set(data.subarray(row * size, (row + 1) * size), at * size));
  return new ort.Tensor(tensor.type, taken, [rows.length, ...tensor.dims.slice(1)]);
}

/** @param {Tensor} tensor (R, V) @returns {Float32Array[]} */
function rowsOf(tensor) {
  const data = /** @type {Float32Array} */ (tensor.data);
  const [rows, size] = tensor.dims;
  return Array.from({ length: rows }, (_, row) => data.subarray(row * size, (row + 1) * size));
}
