// A pad to draw on with mouse, pen or finger. A stroke is a list of points [x, y] in CSS pixels of the pad.
import {h} from './dom.js';

// A point is skipped if its distance to the previous point, in pixels, is smaller than this.
const MIN_STEP = 2;

// `onChange(strokes)` is called after each stroke and each undo.
export function createPad({onChange, label}) {
  const canvas = h('canvas.pad', {tabindex: '0', role: 'img', 'aria-label': label});
  const context = canvas.getContext('2d');
  let strokes = [],
    current = null;

  function paint() {
    const ratio = devicePixelRatio || 1,
      side = canvas.clientWidth;
    if (!side) return;
    const pixels = Math.round(side * ratio);
    if (canvas.width !== pixels || canvas.height !== pixels) canvas.width = canvas.height = pixels;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, side, side);
    context.lineWidth = Math.max(3, side / 60);
    context.lineCap = context.lineJoin = 'round';
    context.strokeStyle = context.fillStyle = '#1b1f24';
    for (const stroke of strokes) {
      context.beginPath();
      if (stroke.length === 1) {
        context.arc(...stroke[0], context.lineWidth / 2, 0, 7);
        context.fill();
        continue;
      }
      context.moveTo(...stroke[0]);
      for (const point of stroke.slice(1)) context.lineTo(...point);
      context.stroke();
    }
    canvas.classList.toggle('empty', strokes.length === 0);
  }

  const pointerPosition = event => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  canvas.addEventListener('pointerdown', event => {
    if (event.button) return;
    canvas.setPointerCapture(event.pointerId);
    current = {pointer: event.pointerId, points: [pointerPosition(event)]};
    strokes.push(current.points);
    paint();
    event.preventDefault();
  });
  canvas.addEventListener('pointermove', event => {
    if (event.pointerId !== current?.pointer) return;
    for (const part of event.getCoalescedEvents?.() ?? [event]) {
      const [x, y] = pointerPosition(part),
        [u, v] = current.points.at(-1);
      if (Math.hypot(x - u, y - v) >= MIN_STEP) current.points.push([x, y]);
    }
    paint();
  });
  const end = event => {
    if (event.pointerId !== current?.pointer) return;
    current = null;
    onChange(strokes);
  };
  canvas.addEventListener('pointerup', end);
  canvas.addEventListener('pointercancel', end);
  new ResizeObserver(paint).observe(canvas);

  return {
    canvas,
    undo() {
      strokes = strokes.slice(0, -1);
      paint();
      onChange(strokes);
    },
    clear() {
      strokes = [];
      paint();
    },
    show(newStrokes) {
      strokes = fitToPad(newStrokes, canvas.clientWidth || 280);
      paint();
    },
    get isDrawing() {
      return current !== null;
    },
  };
}

// Scales strokes to the pad and centers them.
function fitToPad(strokes, side) {
  const points = strokes.flat();
  if (!points.length) return [];
  const low = [0, 1].map(i => Math.min(...points.map(point => point[i])));
  const high = [0, 1].map(i => Math.max(...points.map(point => point[i])));
  const scale = (0.84 * side) / Math.max(high[0] - low[0], high[1] - low[1], 1);
  const shift = [0, 1].map(i => (side - scale * (low[i] + high[i])) / 2);
  return strokes.map(stroke => stroke.map(point => [0, 1].map(i => point[i] * scale + shift[i])));
}

// Returns strokes as text for a URL. Coordinates are scaled as in Quick, Draw!, so that the top left is at 0 and the
// longer side is 255. Each coordinate is two hexadecimal digits, and '-' separates strokes.
export function encodeStrokes(strokes) {
  const all = strokes.flat();
  const low = [0, 1].map(i => Math.min(...all.map(point => point[i])));
  const span = Math.max(1e-9, ...[0, 1].map(i => Math.max(...all.map(point => point[i])) - low[i]));
  const hex = value =>
    Math.round((255 * value) / span)
      .toString(16)
      .padStart(2, '0');
  return strokes
    .map(stroke => {
      const points = stroke.map(point => hex(point[0] - low[0]) + hex(point[1] - low[1]));
      return points.filter((code, i) => code !== points[i - 1]).join('');
    })
    .join('-');
}

export function decodeStrokes(text) {
  return text
    .split('-')
    .map(part =>
      (part.match(/[0-9a-f]{4}/g) ?? []).map(point => [parseInt(point.slice(0, 2), 16), parseInt(point.slice(2), 16)]),
    )
    .filter(stroke => stroke.length);
}
