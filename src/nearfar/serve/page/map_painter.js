// Paints the map. Dots are blended directly into a pixel buffer, so that a map of 60,000 dots moves smoothly without a
// GPU.
import {imageUrl} from './cards.js';
import {fromHex, mix, palette, toCss} from './colors.js';
import {disc, drawDisc} from './discs.js';
import {nameOf, state} from './state.js';

// If at most MAX_IMAGES samples are visible, their images are drawn instead of dots.
const MAX_IMAGES = 260,
  IMAGE_CACHE = 900,
  MAX_NAME = 26;

// `points` has x, y, ids and labels. `highlighted` and `trained` are sets of labels. `redraw` is called when an image
// has loaded.
export function createPainter({canvas, overlay, points, grid, camera, proxies, highlighted, trained, redraw}) {
  const {x, y, ids, labels} = points;
  const context = canvas.getContext('2d', {alpha: false}),
    overlayContext = overlay.getContext('2d');
  const order = new Map(state.classes.map((item, i) => [item.label, i]));
  const classOf = Int32Array.from(labels, label => order.get(label));
  const visible = new Uint32Array(labels.length);
  const centers = classCenters(x, y, labels);
  const images = new Map();
  let buffer = null,
    pixels = null;

  function resize() {
    for (const element of [canvas, overlay]) {
      element.width = camera.width;
      element.height = camera.height;
    }
    buffer = context.createImageData(camera.width, camera.height);
    pixels = new Uint32Array(buffer.data.buffer);
  }

  function readColors() {
    const isDark = document.documentElement.dataset.theme === 'dark';
    const style = getComputedStyle(document.documentElement);
    const color = name => fromHex(style.getPropertyValue(name));
    return {
      classes: palette(state.classes.length, isDark),
      background: color('--card'),
      text: color('--ink'),
      accent: color('--accent'),
      trained: color('--c0'),
      untrained: color('--c1'),
      faded: mix(color('--card'), color('--soft'), isDark ? 0.32 : 0.26),
    };
  }

  function visiblePoints() {
    const margin = 12 / camera.scale,
      halfWidth = camera.width / 2 / camera.scale + margin,
      halfHeight = camera.height / 2 / camera.scale + margin;
    let count = 0;
    grid.visitBox(camera.x - halfWidth, camera.y - halfHeight, camera.x + halfWidth, camera.y + halfHeight, i => {
      visible[count++] = i;
    });
    return visible.subarray(0, count);
  }

  function paint({bySplit, showProxies}) {
    const colors = readColors();
    const [red, green, blue] = colors.background;
    pixels.fill(0xff000000 | (blue << 16) | (green << 8) | red);
    const near = visiblePoints();
    const showImages = near.length <= MAX_IMAGES && state.info.display !== 'text';
    const colorOf = i =>
      !bySplit ? colors.classes[classOf[i]] : trained.has(labels[i]) ? colors.trained : colors.untrained;
    if (!showImages) paintDots(near, colorOf, colors.faded);
    context.putImageData(buffer, 0, 0);
    if (showImages) paintImages(near, colorOf);
    if (showProxies)
      for (const {label, x: u, y: v} of proxies)
        if (!highlighted.size || highlighted.has(label)) {
          const fill = bySplit ? colors.trained : (colors.classes[order.get(label)] ?? colors.faded);
          paintStar(camera.toPixelX(u), camera.toPixelY(v), toCss(fill), toCss(colors.text));
        }
    paintNames(colors, bySplit);
    return colors;
  }

  function paintDots(near, colorOf, faded) {
    const density = Math.min(1.6, Math.sqrt(30000 / labels.length));
    const radius = Math.min(7, Math.max(1.15, 1.5 * Math.sqrt(camera.zoomLevel) * density)) * camera.ratio;
    const normal = disc(radius),
      large = disc(radius * 1.5);
    const dot = (shape, i, rgb) =>
      drawDisc(pixels, camera.width, camera.height, shape, camera.toPixelX(x[i]), camera.toPixelY(y[i]), rgb);
    if (highlighted.size) for (const i of near) if (!highlighted.has(labels[i])) dot(normal, i, faded);
    for (const i of near)
      if (!highlighted.size) dot(normal, i, colorOf(i));
      else if (highlighted.has(labels[i])) dot(large, i, colorOf(i));
  }

  function paintImages(near, colorOf) {
    const {width, height, ratio} = camera;
    const side = Math.min(84, Math.max(30, Math.sqrt((0.45 * width * height) / Math.max(8, near.length)) / ratio)) * ratio,
      inner = side - 6 * ratio;
    for (const i of near) {
      const px = camera.toPixelX(x[i]),
        py = camera.toPixelY(y[i]),
        image = loadImage(ids[i]);
      context.globalAlpha = highlighted.size && !highlighted.has(labels[i]) ? 0.25 : 1;
      context.fillStyle = '#fff';
      context.strokeStyle = toCss(colorOf(i));
      context.lineWidth = 2 * ratio;
      context.beginPath();
      context.roundRect(px - side / 2, py - side / 2, side, side, 6 * ratio);
      context.fill();
      if (image) context.drawImage(image, px - inner / 2, py - inner / 2, inner, inner);
      context.stroke();
    }
    context.globalAlpha = 1;
  }

  function loadImage(id) {
    const cached = images.get(id);
    if (cached !== undefined) return cached;
    if (images.size > IMAGE_CACHE) images.delete(images.keys().next().value);
    images.set(id, null);
    const image = new Image();
    image.onload = () => {
      images.set(id, image);
      redraw();
    };
    image.src = imageUrl(id, 'small');
    return null;
  }

  function paintStar(px, py, fill, outline) {
    if (px < -20 || py < -20 || px > camera.width + 20 || py > camera.height + 20) return;
    const outer = 5.5 * camera.ratio * Math.min(1.8, Math.max(0.8, Math.sqrt(camera.zoomLevel)));
    context.beginPath();
    for (let i = 0; i < 10; i++) {
      const angle = Math.PI * (i / 5 - 0.5),
        radius = i % 2 ? outer * 0.45 : outer;
      context[i ? 'lineTo' : 'moveTo'](px + radius * Math.cos(angle), py + radius * Math.sin(angle));
    }
    context.closePath();
    context.lineWidth = 2.5 * camera.ratio;
    context.strokeStyle = outline;
    context.stroke();
    context.fillStyle = fill;
    context.fill();
  }

  // Writes class names where there is room, starting with the most compact classes. Zooming in shows more names.
  function paintNames(colors, bySplit) {
    const {width, height, ratio} = camera;
    context.font = `650 ${12.5 * ratio}px system-ui, sans-serif`;
    context.textAlign = 'center';
    context.textBaseline = 'middle';
    context.lineJoin = 'round';
    context.strokeStyle = toCss(colors.background);
    context.lineWidth = 4 * ratio;
    const boxes = [],
      halfLine = 11 * ratio,
      limit = highlighted.size ? 999 : Math.round(26 * Math.pow(camera.zoomLevel, 1.2));
    for (const {label, u, v} of centers) {
      if (highlighted.size && !highlighted.has(label)) continue;
      const [cx, cy] = [camera.toPixelX(u), camera.toPixelY(v)];
      if (Math.abs(cx - width / 2) > width / 2 || Math.abs(cy - height / 2) > height / 2) continue;
      const name = shorten(nameOf(label)),
        half = context.measureText(name).width / 2 + 6 * ratio;
      const px = Math.min(Math.max(cx, half), width - half),
        py = Math.min(Math.max(cy, halfLine), height - halfLine);
      if (boxes.some(([bx, by, bw]) => Math.abs(bx - px) < bw + half && Math.abs(by - py) < 2 * halfLine)) continue;
      boxes.push([px, py, half]);
      context.strokeText(name, px, py);
      context.fillStyle = toCss(bySplit ? colors.text : mix(colors.classes[order.get(label)], colors.text, 0.35));
      context.fillText(name, px, py);
      if (boxes.length >= limit) break;
    }
  }

  // Draws rings around single samples on the overlay. `rings` is a list of [index of the point, line width]; index -1
  // draws nothing.
  function paintRings(rings) {
    const {background, accent} = readColors();
    overlayContext.clearRect(0, 0, camera.width, camera.height);
    for (const [i, lineWidth] of rings) {
      if (i < 0) continue;
      overlayContext.beginPath();
      overlayContext.arc(camera.toPixelX(x[i]), camera.toPixelY(y[i]), 9 * camera.ratio, 0, 7);
      for (const [extra, rgb] of [
        [2, background],
        [0, accent],
      ]) {
        overlayContext.lineWidth = (lineWidth + extra) * camera.ratio;
        overlayContext.strokeStyle = toCss(rgb);
        overlayContext.stroke();
      }
    }
  }
  return {resize, paint, paintRings};
}

// Returns the median position of each class, starting with the most compact classes.
function classCenters(x, y, labels) {
  const members = new Map();
  for (let i = 0; i < labels.length; i++) {
    if (!members.has(labels[i])) members.set(labels[i], []);
    members.get(labels[i]).push(i);
  }
  const median = values => values.sort((a, b) => a - b)[values.length >> 1];
  return [...members]
    .map(([label, rows]) => {
      const u = median(rows.map(i => x[i])),
        v = median(rows.map(i => y[i]));
      return {label, u, v, spread: median(rows.map(i => Math.hypot(x[i] - u, y[i] - v))) / Math.sqrt(rows.length)};
    })
    .sort((a, b) => a.spread - b.spread);
}

const shorten = name => (name.length > MAX_NAME ? `${name.slice(0, MAX_NAME - 1)}…` : name);
