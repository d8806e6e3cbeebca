// @ts-check
/** Sounds as log-mel frames, as `composer.data.audio` computes them, and vectors of NumPy. */

const LOWEST = 1e-10;
const SMALLEST_DEVIATION = 1e-5;
const LOUDNESS_RANGE = 8;
const LINEAR_UP_TO = 1000; // Slaney's scale: linear below this frequency, logarithmic above
const LINEAR_STEP = 200 / 3;
const LOG_STEP = Math.log(6.4) / 27;
const STREAMED = 0x7fff0000; // bytes of a WAV from which on its size was not known

/** Round as Python does. @param {number} number @returns {number} */
export function halfToEven(number) {
  return number % 1 === 0.5 ? 2 * Math.round(number / 2) : Math.round(number);
}

/** Return the frames of a sound. -> (T, F) @param {Blob} file @param {any} column settings */
export async function readSound(file, column) {
  const context = new OfflineAudioContext(1, 1, column.rate); // it resamples what it decodes
  const content = await file.arrayBuffer();
  requireWhole(content); // a browser reads what there is
  const sound = await context.decodeAudioData(content);
  const samples = new Float32Array(sound.length);
  for (let channel = 0; channel < sound.numberOfChannels; channel += 1)
    sound.getChannelData(channel).forEach((value, at) => (samples[at] += value / sound.numberOfChannels));
  const settings = column.features.log_mel;
  const frames = framesOf(samples, column);
  if (column.normalize === "range") keepRange(frames);
  else if (column.normalize) normalize(frames, settings.bands);
  return { values: Float32Array.from(frames), positions: frames.length / settings.bands };
}

/** Return the frames of a sound, of the length that its column says. -> (T, bands) @param {Float32Array} samples @param {any} column */
function framesOf(samples, column) {
  const { rate, seconds, features } = column;
  if (seconds === null) return logMel(samples, rate, features.log_mel);
  const fixed = new Float32Array(halfToEven(seconds * rate)); // silence after a shorter one
  fixed.set(samples.subarray(0, fixed.length));
  const count = Math.floor(fixed.length / halfToEven(features.log_mel.hop * rate));
  return logMel(fixed, rate, features.log_mel).slice(0, count * features.log_mel.bands);
}

/** Refuse a WAV without samples, or with fewer than its header says. @param {ArrayBuffer} content */
export function requireWhole(content) {
  const view = new DataView(content);
  const name = (/** @type {number} */ at) => String.fromCharCode(...new Uint8Array(content, at, 4));
  if (content.byteLength < 12 || name(0) !== "RIFF") return;
  let [at, declared] = [12, 0];
  for (; at + 8 <= content.byteLength; at += 8 + declared + (declared % 2)) {
    declared = view.getUint32(at + 4, true);
    if (name(at) === "data") break;
  }
  const actual = Math.max(0, content.byteLength - at - 8);
  if (!actual) throw new Error("This sound has no samples.");
  if (declared < STREAMED && declared > actual)
    throw new Error(`This sound is cut off: its header says ${declared} bytes of samples, and there are ${actual}.`);
}

/** Return the frames of a file of NumPy. -> (T, F) @param {Blob} file @param {number} width */
export async function readVectors(file, width) {
  const content = await file.arrayBuffer();
  const head = new TextDecoder("latin1").decode(content.slice(10, 10 + new DataView(content).getUint16(8, true)));
  const [, type, order, count, numbers] = /'descr': '<(f[48])'.*'fortran_order': (\w+).*\((\d+), (\d+)\)/.exec(head) ?? [];
  if (order !== "False" || Number(numbers) !== width)
    throw new Error(`Choose a file of NumPy with frames of ${width} numbers, float32 or float64.`);
  const values = type === "f4" ? new Float32Array(content.slice(10 + head.length)) : new Float64Array(content.slice(10 + head.length));
  return { values: Float32Array.from(values), positions: Number(count) };
}

/** Return log10 of mel energies. -> (T, bands) @param {Float32Array} samples @param {number} rate @param {any} settings @returns {Float64Array} */
function logMel(samples, rate, { bands, window, hop, fft, padding }) {
  const [size, step] = [halfToEven(window * rate), halfToEven(hop * rate)];
  const points = fft ?? 2 ** Math.ceil(Math.log2(size));
  const around = Math.floor(points / 2);
  const filters = melFilters(rate, points, bands);
  const padded = pad(samples, around, padding);
  const frames = new Float64Array((1 + Math.floor((padded.length - points) / step)) * bands);
  for (let first = 0; first < frames.length; first += bands) {
    const power = powerSpectrum(windowed(padded, (first / bands) * step, size, points));
    filters.forEach((weights, band) => {
      const energy = weights.reduce((sum, weight, at) => sum + weight * power[at], 0);
      frames[first + band] = Math.log10(Math.max(LOWEST, energy));
    });
  }
  return frames;
}

/** Return samples with silence around them, or mirrored. @param {Float32Array} samples @param {number} count @param {string} padding */
function pad(samples, count, padding) {
  const padded = new Float32Array(samples.length + 2 * count);
  padded.set(samples, count);
  const period = Math.max(1, 2 * (samples.length - 1));
  for (let at = 0; at < padded.length && padding === "reflect"; at += 1) {
    const place = (((at - count) % period) + period) % period;
    padded[at] = samples[Math.min(place, period - place)] ?? samples[0];
  }
  return padded;
}

/** Return samples in a Hann window. @param {Float32Array} samples @param {number} first @param {number} size @param {number} points */
function windowed(samples, first, size, points) {
  const frame = new Float64Array(points);
  const left = Math.floor((points - size) / 2);
  for (let at = 0; at < size; at += 1)
    frame[left + at] = (0.5 - 0.5 * Math.cos((2 * Math.PI * at) / size)) * samples[first + left + at];
  return frame;
}

/** Return the squares of the first half of a Fourier transform. @param {Float64Array} real @returns {Float64Array} */
function powerSpectrum(real) {
  const imaginary = new Float64Array(real.length);
  transform(real, imaginary);
  return real.slice(0, Math.floor(real.length / 2) + 1).map((value, at) => value ** 2 + imaginary[at] ** 2);
}

/** Transform numbers in place, by halves (Cooley & Tukey 1965). @param {Float64Array} real @param {Float64Array} imaginary @returns {void} */
function transform(real, imaginary) {
  const size = real.length;
  if (size === 1) return;
  if (size % 2) return transformOdd(real, imaginary);
  const parts = [0, 1].map(first => [real, imaginary].map(part => part.filter((_, at) => at % 2 === first)));
  for (const [one, other] of parts) transform(one, other);
  const [even, odd] = parts;
  for (let at = 0; at < size / 2; at += 1) {
    const [cos, sin] = [Math.cos((-2 * Math.PI * at) / size), Math.sin((-2 * Math.PI * at) / size)];
    const turnedReal = cos * odd[0][at] - sin * odd[1][at];
    const turnedImaginary = sin * odd[0][at] + cos * odd[1][at];
    [real[at], real[at + size / 2]] = [even[0][at] + turnedReal, even[0][at] - turnedReal];
    [imaginary[at], imaginary[at + size / 2]] = [even[1][at] + turnedImaginary, even[1][at] - turnedImaginary];
  }
}

/** Transform numbers in place, by the definition. @param {Float64Array} real @param {Float64Array} imaginary */
function transformOdd(real, imaginary) {
  const [before, beside, size] = [real.slice(), imaginary.slice(), real.length];
  for (let row = 0; row < size; row += 1) {
    real[row] = imaginary[row] = 0;
    for (let at = 0; at < size; at += 1) {
      const angle = (-2 * Math.PI * ((row * at) % size)) / size;
      const [cos, sin] = [Math.cos(angle), Math.sin(angle)];
      real[row] += before[at] * cos - beside[at] * sin;
      imaginary[row] += before[at] * sin + beside[at] * cos;
    }
  }
}

/** Return triangles of area 1 on Slaney's scale. -> (bands, points / 2 + 1) @param {number} rate @param {number} points @param {number} bands */
function melFilters(rate, points, bands) {
  const top = hertzToMel(rate / 2);
  const edges = Array.from({ length: bands + 2 }, (_, at) => melToHertz((top * at) / (bands + 1)));
  return Array.from({ length: bands }, (_, band) => {
    const [low, middle, high] = edges.slice(band, band + 3);
    return Float64Array.from({ length: Math.floor(points / 2) + 1 }, (_, at) => {
      const frequency = (rate * at) / points;
      const height = Math.min((frequency - low) / (middle - low), (high - frequency) / (high - middle));
      return (Math.max(0, height) * 2) / (high - low);
    });
  });
}

/** @param {number} frequency @returns {number} */
function hertzToMel(frequency) {
  if (frequency < LINEAR_UP_TO) return frequency / LINEAR_STEP;
  return LINEAR_UP_TO / LINEAR_STEP + Math.log(frequency / LINEAR_UP_TO) / LOG_STEP;
}

/** @param {number} mel @returns {number} */
function melToHertz(mel) {
  const first = LINEAR_UP_TO / LINEAR_STEP;
  return mel < first ? mel * LINEAR_STEP : LINEAR_UP_TO * Math.exp(LOG_STEP * (mel - first));
}

/** Raise what is far below the loudest, in place, and move it to about -1 to 1. @param {Float64Array} frames */
function keepRange(frames) {
  const lowest = frames.reduce((one, other) => Math.max(one, other), -Infinity) - LOUDNESS_RANGE;
  frames.forEach((value, at) => (frames[at] = (Math.max(value, lowest) + 4) / 4));
}

/** Give each band mean 0 and variance 1, in place. @param {Float64Array} frames @param {number} bands */
function normalize(frames, bands) {
  for (let band = 0; band < bands; band += 1) {
    const own = frames.filter((_, at) => at % bands === band);
    const mean = own.reduce((one, other) => one + other, 0) / own.length;
    const variance = own.reduce((sum, value) => sum + (value - mean) ** 2, 0) / own.length;
    const deviation = Math.max(SMALLEST_DEVIATION, Math.sqrt(variance));
    for (let at = band; at < frames.length; at += bands) frames[at] = (frames[at] - mean) / deviation;
  }
}
