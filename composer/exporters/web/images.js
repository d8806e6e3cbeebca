// @ts-check
/** Images as the cells of a grid, as `composer.data.images` reads them, with the filter of Pillow. */

import { halfToEven } from "./sounds.js";

/** @typedef {{data: Uint8ClampedArray, width: number, height: number}} Plane one colour of an image */

const SUPPORT = 2; // pixels to each side that the bicubic filter reads

/**
 * Return the cells of an image, NaN beside it. -> (T, W, C), its positions and the columns that are image
 * @param {Blob} file @param {any} column settings @param {number[]} shape (W, C)
 */
export async function readImage(file, column, [width, channels]) {
  const image = await createImageBitmap(file, { colorSpaceConversion: "none" });
  const [most_high, most_wide] = column.size;
  const scale = Math.min(1, most_high / image.height, most_wide / image.width);
  const size = [image.width, image.height].map(side => Math.max(1, halfToEven(side * scale)));
  const planes = planesOf(image, channels).map(plane => (scale < 1 ? resize(plane, size[0], size[1]) : plane));
  const isTurned = column.positions === "columns";
  const [positions, real] = isTurned ? size : size.toReversed();
  const values = new Float32Array(positions * width * channels).fill(NaN);
  for (let at = 0; at < positions * real; at += 1) {
    const [position, cell] = [Math.floor(at / real), at % real];
    const pixel = isTurned ? cell * size[0] + position : position * size[0] + cell;
    planes.forEach((plane, channel) => {
      values[(position * width + cell) * channels + channel] = plane.data[pixel] / 255;
    });
  }
  return { values, positions, real: positions * real };
}

/** Return grey or the three colours of an image, on white. @param {ImageBitmap} image @param {number} channels @returns {Plane[]} */
function planesOf(image, channels) {
  const { width, height } = image;
  const canvas = Object.assign(document.createElement("canvas"), { width, height });
  const brush = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  brush.fillStyle = "white";
  brush.fillRect(0, 0, width, height);
  brush.drawImage(image, 0, 0);
  const { data } = brush.getImageData(0, 0, width, height);
  return Array.from({ length: channels }, (_, channel) => {
    const plane = new Uint8ClampedArray(width * height);
    for (let at = 0; at < plane.length; at += 1)
      plane[at] = channels === 1 ? grey(data[4 * at], data[4 * at + 1], data[4 * at + 2]) : data[4 * at + channel];
    return { data: plane, width, height };
  });
}

/** @param {number} red @param {number} green @param {number} blue */
function grey(red, green, blue) {
  return (red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16;
}

/** @param {Plane} plane @param {number} width @param {number} height */
function resize(plane, width, height) {
  return turned(narrowed(turned(narrowed(plane, width)), height));
}

/** @param {Plane} plane @returns {Plane} */
function turned({ data, width, height }) {
  const made = data.map((_, at) => data[(at % height) * width + Math.floor(at / height)]);
  return { data: made, width: height, height: width };
}

/** Scale each row to a width. @param {Plane} plane @param {number} width @returns {Plane} */
function narrowed(plane, width) {
  if (plane.width === width) return plane;
  const data = new Uint8ClampedArray(width * plane.height);
  for (let column = 0; column < width; column += 1) {
    const { first, weights } = filter(column, plane.width, width);
    for (let row = 0; row < plane.height; row += 1) {
      const sum = weights.reduce((total, weight, at) => total + weight * plane.data[row * plane.width + first + at], 0);
      data[row * width + column] = Math.floor(sum + 0.5);
    }
  }
  return { data, width, height: plane.height };
}

/** Return what a pixel reads: the first one, and weights of it and those after it. @param {number} at @param {number} from @param {number} to */
function filter(at, from, to) {
  const scale = from / to;
  const reach = Math.max(1, scale);
  const center = (at + 0.5) * scale;
  const first = Math.max(0, Math.trunc(center - SUPPORT * reach + 0.5));
  const end = Math.min(from, Math.trunc(center + SUPPORT * reach + 0.5));
  const weights = Array.from({ length: end - first }, (_, more) => bicubic((first + more - center + 0.5) / reach));
  const total = weights.reduce((one, other) => one + other, 0);
  return { first, weights: weights.map(weight => weight / total) };
}

/** @param {number} x @returns {number} */
function bicubic(x) {
  const far = Math.abs(x);
  if (far < 1) return (1.5 * far - 2.5) * far * far + 1;
  return far < 2 ? -0.5 * (((far - 5) * far + 8) * far - 4) : 0;
}
