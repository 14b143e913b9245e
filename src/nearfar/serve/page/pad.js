// A pad to draw on with mouse, pen or finger. Strokes are lists of [x, y] in pixels of the pad.
import {h} from './dom.js';

const CLOSE = 2;

export function pad({changed, label}) {
  const canvas = h('canvas.pad', {tabindex: '0', role: 'img', 'aria-label': label});
  const context = canvas.getContext('2d');
  let strokes = [],
    current = null;

  function paint() {
    const ratio = devicePixelRatio || 1,
      side = canvas.clientWidth;
    if (!side) return;
    const whole = Math.round(side * ratio);
    if (canvas.width !== whole || canvas.height !== whole) canvas.width = canvas.height = whole;
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

  const at = event => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  canvas.addEventListener('pointerdown', event => {
    if (event.button) return;
    canvas.setPointerCapture(event.pointerId);
    current = {pointer: event.pointerId, points: [at(event)]};
    strokes.push(current.points);
    paint();
    event.preventDefault();
  });
  canvas.addEventListener('pointermove', event => {
    if (event.pointerId !== current?.pointer) return;
    for (const each of event.getCoalescedEvents?.() ?? [event]) {
      const [x, y] = at(each),
        [u, v] = current.points.at(-1);
      if (Math.hypot(x - u, y - v) >= CLOSE) current.points.push([x, y]);
    }
    paint();
  });
  const end = event => {
    if (event.pointerId !== current?.pointer) return;
    current = null;
    changed(strokes);
  };
  canvas.addEventListener('pointerup', end);
  canvas.addEventListener('pointercancel', end);
  new ResizeObserver(paint).observe(canvas);

  return {
    canvas,
    undo() {
      strokes = strokes.slice(0, -1);
      paint();
      changed(strokes);
    },
    clear() {
      strokes = [];
      paint();
    },
    show(given) {
      strokes = fitted(given, canvas.clientWidth || 280);
      paint();
    },
    get drawing() {
      return current !== null;
    },
  };
}

// scaled and centered onto the pad
function fitted(strokes, side) {
  const points = strokes.flat();
  if (!points.length) return [];
  const low = [0, 1].map(i => Math.min(...points.map(point => point[i])));
  const high = [0, 1].map(i => Math.max(...points.map(point => point[i])));
  const scale = (0.84 * side) / Math.max(high[0] - low[0], high[1] - low[1], 1);
  const shift = [0, 1].map(i => (side - scale * (low[i] + high[i])) / 2);
  return strokes.map(stroke => stroke.map(point => [0, 1].map(i => point[i] * scale + shift[i])));
}

// Quick, Draw!'s frame: top left at 0, the longer side 255, in whole numbers; so a drawing fits into an address
export function encode(strokes) {
  const points = strokes.flat();
  const low = [0, 1].map(i => Math.min(...points.map(point => point[i])));
  const span = Math.max(1e-9, ...[0, 1].map(i => Math.max(...points.map(point => point[i])) - low[i]));
  const hex = value =>
    Math.round((255 * value) / span)
      .toString(16)
      .padStart(2, '0');
  return strokes
    .map(stroke => {
      const codes = stroke.map(point => hex(point[0] - low[0]) + hex(point[1] - low[1]));
      return codes.filter((code, i) => code !== codes[i - 1]).join('');
    })
    .join('-');
}

export function decode(code) {
  return code
    .split('-')
    .map(part =>
      (part.match(/[0-9a-f]{4}/g) ?? []).map(each => [parseInt(each.slice(0, 2), 16), parseInt(each.slice(2), 16)]),
    )
    .filter(stroke => stroke.length);
}
