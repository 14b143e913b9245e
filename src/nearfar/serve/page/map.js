// The embedding map. Dots are blended straight into a pixel buffer, which keeps 60,000 of them fluid without a GPU.
import {busy, h, toast} from './dom.js';
import {patient} from './api.js';
import {nameOf, pictureOf, shot} from './cards.js';
import {css, hex, mix, palette} from './colors.js';
import {disc, stamp} from './dots.js';
import {grid} from './grid.js';
import {labelOf, state} from './state.js';

const PICTURES = 260,
  REACH = 18,
  KEPT = 900;

export async function map(view, here, signal) {
  const wait = busy('Laying out the map: once, it is kept');
  view.append(wait);
  const plane = await patient('/api/map', signal);
  const bytes = await patient('/api/map/points', signal, {binary: true});
  wait.remove();
  const n = plane.points;
  const column = (Kind, i) => new Kind(bytes, 4 * n * i, n);
  const x = column(Float32Array, 0),
    y = column(Float32Array, 1),
    ids = column(Int32Array, 2),
    labels = column(Int32Array, 3);
  const cells = grid(x, y);
  const order = state.classes.map(each => each.label);
  const rank = new Map(order.map((label, i) => [label, i]));
  const trained = new Set(state.classes.filter(each => each.split === 'train').map(each => each.label));
  const rankOf = Int32Array.from(labels, label => rank.get(label));
  const seen = new Uint32Array(n);
  const anchors = middles(x, y, labels);

  const canvas = h('canvas.plane', {
    tabindex: '0',
    role: 'application',
    'aria-label': `Map of ${n} samples. Arrow keys move, plus and minus zoom, Enter opens the sample in the middle.`,
  });
  const over = h('canvas.over', {'aria-hidden': 'true'});
  const tip = h('div.tip', {hidden: true, role: 'status'});
  const names = h(
    'datalist',
    {id: 'map-names'},
    state.classes.map(each => h('option', {value: each.name})),
  );
  const find = h('input', {
    type: 'search',
    list: 'map-names',
    placeholder: 'Highlight a class',
    'aria-label': 'Highlight a class',
    onchange: pick,
    oninput: () => {
      if (!find.value) pick();
    },
  });
  const chips = h('div.chips');
  const color = h(
    'select',
    {'aria-label': 'Color by', onchange: () => draw()},
    h('option', {value: 'class'}, 'color by class'),
    trained.size && trained.size < order.length ? h('option', {value: 'split'}, 'color by seen in training') : null,
  );
  const proxies = h('input', {type: 'checkbox', checked: true, onchange: () => draw()});
  const legend = h('div.legend-line');
  const zoomer = h(
    'div.zoom',
    {},
    h('button.icon', {type: 'button', 'aria-label': 'Zoom in', onclick: () => zoom(1.6)}, '+'),
    h('button.icon', {type: 'button', 'aria-label': 'Zoom out', onclick: () => zoom(1 / 1.6)}, '−'),
    h('button.icon', {type: 'button', 'aria-label': 'Whole map', onclick: home}, '⤢'),
  );
  view.append(
    h(
      'div.mapview',
      {},
      h(
        'div.maptools',
        {},
        find,
        color,
        plane.stars.length ? h('label.check', {}, proxies, 'proxies') : null,
        legend,
        chips,
      ),
      h(
        'div.stage',
        {},
        canvas,
        over,
        tip,
        zoomer,
        h(
          'p.method.soft',
          {},
          `${n.toLocaleString('en')} samples. ${plane.method}: neighbors stay neighbors, distances between groups mean little.`,
        ),
      ),
    ),
    names,
  );

  const context = canvas.getContext('2d', {alpha: false}),
    top = over.getContext('2d');
  const chosen = new Set();
  // where the middle of the view is in the plane, and how many pixels a unit has
  const eye = {x: 0, y: 0, scale: 300};
  let width = 0,
    height = 0,
    ratio = 1,
    buffer = null,
    pixels = null,
    hovered = -1,
    marked = -1,
    asked = false;
  const pictures = new Map();

  function size() {
    ratio = Math.min(2, devicePixelRatio || 1);
    const box = canvas.parentElement.getBoundingClientRect();
    if (!box.width) return;
    // the whole map stays whole when the window changes
    const whole = !width || eye.scale === fitted();
    width = Math.round(box.width * ratio);
    height = Math.round(box.height * ratio);
    for (const each of [canvas, over]) {
      each.width = width;
      each.height = height;
    }
    buffer = context.createImageData(width, height);
    pixels = new Uint32Array(buffer.data.buffer);
    if (whole) home();
    else draw();
  }

  // the whole map fits, with room for the line below
  const reach = [x, y].map(values => values.reduce((most, value) => Math.max(most, Math.abs(value)), 0.05));
  const fitted = () => Math.min((0.48 * width) / reach[0], (0.45 * height) / reach[1]);
  function home() {
    Object.assign(eye, {x: 0, y: 0, scale: fitted()});
    draw();
  }
  const across = value => (value - eye.x) * eye.scale + width / 2;
  const down = value => (value - eye.y) * eye.scale + height / 2;

  function zoom(times, px = width / 2, py = height / 2) {
    const scale = Math.min(Math.max(eye.scale * times, fitted() * 0.6), fitted() * 400);
    const change = 1 / eye.scale - 1 / scale;
    eye.x += (px - width / 2) * change;
    eye.y += (py - height / 2) * change;
    eye.scale = scale;
    hold();
    draw();
  }
  function hold() {
    eye.x = Math.min(1.1, Math.max(-1.1, eye.x));
    eye.y = Math.min(1.1, Math.max(-1.1, eye.y));
  }

  function draw() {
    if (!asked) {
      asked = true;
      requestAnimationFrame(() => {
        asked = false;
        if (!signal.aborted && width) paint();
      });
    }
  }

  function paint() {
    const dark = document.documentElement.dataset.theme === 'dark';
    const style = getComputedStyle(document.documentElement);
    const ground = hex(style.getPropertyValue('--card')),
      inks = palette(order.length, dark);
    const split = color.value === 'split',
      [old, fresh] = [hex(style.getPropertyValue('--c0')), hex(style.getPropertyValue('--c1'))];
    const faded = mix(ground, hex(style.getPropertyValue('--soft')), dark ? 0.32 : 0.26);
    pixels.fill(0xff000000 | (ground[2] << 16) | (ground[1] << 8) | ground[0]);
    const half = [width / 2 / eye.scale, height / 2 / eye.scale],
      pad = 12 / eye.scale;
    let count = 0;
    cells.inside(eye.x - half[0] - pad, eye.y - half[1] - pad, eye.x + half[0] + pad, eye.y + half[1] + pad, i => {
      seen[count++] = i;
    });
    const near = seen.subarray(0, count);
    const shows = near.length <= PICTURES && state.info.look !== 'words';
    const radius =
      Math.min(7, Math.max(1.15, 1.5 * Math.sqrt(eye.scale / fitted()) * Math.min(1.6, Math.sqrt(30000 / n)))) * ratio;
    const mask = disc(radius),
      big = disc(radius * 1.5);
    const ink = i => (split ? (trained.has(labels[i]) ? old : fresh) : inks[rankOf[i]]);
    if (!shows) {
      if (chosen.size) for (const i of near) if (!chosen.has(labels[i])) dot(mask, i, faded);
      for (const i of near)
        if (!chosen.size) dot(mask, i, ink(i));
        else if (chosen.has(labels[i])) dot(big, i, ink(i));
    }
    context.putImageData(buffer, 0, 0);
    if (shows) tiles(near, ink);
    const edge = style.getPropertyValue('--ink');
    if (proxies.checked)
      for (const star of plane.stars)
        if (!chosen.size || chosen.has(star.label))
          starAt(across(star.x), down(star.y), css(split ? old : (inks[rank.get(star.label)] ?? faded)), edge);
    write(inks, split, style);
    mark(style);
    legend.replaceChildren(
      ...(split
        ? [
            ['in the training data', old],
            ['new to the network', fresh],
          ].map(([name, rgb]) => h('span', {}, h('i', {vars: {'--ink-of': css(rgb)}}), name))
        : []),
    );
  }

  const dot = (mask, i, rgb) => stamp(pixels, width, height, mask, across(x[i]), down(y[i]), rgb);

  function tiles(near, ink) {
    const side =
      Math.min(84, Math.max(30, Math.sqrt((0.45 * width * height) / Math.max(8, near.length)) / ratio)) * ratio;
    for (const i of near) {
      const px = across(x[i]),
        py = down(y[i]),
        image = picture(ids[i]);
      context.globalAlpha = chosen.size && !chosen.has(labels[i]) ? 0.25 : 1;
      context.fillStyle = '#fff';
      context.strokeStyle = css(ink(i));
      context.lineWidth = 2 * ratio;
      context.beginPath();
      context.roundRect(px - side / 2, py - side / 2, side, side, 6 * ratio);
      context.fill();
      if (image)
        context.drawImage(
          image,
          px - side / 2 + 3 * ratio,
          py - side / 2 + 3 * ratio,
          side - 6 * ratio,
          side - 6 * ratio,
        );
      context.stroke();
    }
    context.globalAlpha = 1;
  }

  function picture(id) {
    const known = pictures.get(id);
    if (known !== undefined) return known;
    if (pictures.size > KEPT) pictures.delete(pictures.keys().next().value);
    pictures.set(id, null);
    const image = new Image();
    image.onload = () => {
      pictures.set(id, image);
      draw();
    };
    image.src = pictureOf(id, 'small');
    return null;
  }

  function starAt(px, py, fill, edge) {
    if (px < -20 || py < -20 || px > width + 20 || py > height + 20) return;
    const reach = 5.5 * ratio * Math.min(1.8, Math.max(0.8, Math.sqrt(eye.scale / fitted())));
    context.beginPath();
    for (let i = 0; i < 10; i++) {
      const angle = Math.PI * (i / 5 - 0.5),
        r = i % 2 ? reach * 0.45 : reach;
      context[i ? 'lineTo' : 'moveTo'](px + r * Math.cos(angle), py + r * Math.sin(angle));
    }
    context.closePath();
    context.lineWidth = 2.5 * ratio;
    context.strokeStyle = edge;
    context.stroke();
    context.fillStyle = fill;
    context.fill();
  }

  // names where there is room, tight classes first; more of them appear as one goes nearer
  function write(inks, split, style) {
    context.font = `650 ${12.5 * ratio}px system-ui, sans-serif`;
    context.textAlign = 'center';
    context.textBaseline = 'middle';
    context.lineJoin = 'round';
    context.strokeStyle = style.getPropertyValue('--card');
    context.lineWidth = 4 * ratio;
    const taken = [],
      closer = eye.scale / fitted();
    const most = chosen.size ? 999 : Math.round(26 * Math.pow(closer, 1.2));
    for (const {label, u, v} of anchors) {
      if (chosen.size && !chosen.has(label)) continue;
      if (Math.abs(across(u) - width / 2) > width / 2 || Math.abs(down(v) - height / 2) > height / 2) continue;
      const name = clipped(nameOf(label)),
        half = context.measureText(name).width / 2 + 6 * ratio,
        tall = 11 * ratio;
      const px = Math.min(Math.max(across(u), half), width - half),
        py = Math.min(Math.max(down(v), tall), height - tall);
      if (taken.some(([a, b, w]) => Math.abs(a - px) < w + half && Math.abs(b - py) < 2 * tall)) continue;
      taken.push([px, py, half]);
      context.strokeText(name, px, py);
      context.fillStyle = split
        ? style.getPropertyValue('--ink')
        : css(mix(inks[rank.get(label)], hex(style.getPropertyValue('--ink')), 0.35));
      context.fillText(name, px, py);
      if (taken.length >= most) break;
    }
  }

  // what points at one sample, on its own layer
  function mark(style) {
    top.clearRect(0, 0, width, height);
    for (const [i, thick] of [
      [marked, 4],
      [hovered, 2.5],
    ]) {
      if (i < 0) continue;
      top.beginPath();
      top.arc(across(x[i]), down(y[i]), 9 * ratio, 0, 7);
      top.lineWidth = (thick + 2) * ratio;
      top.strokeStyle = style.getPropertyValue('--card');
      top.stroke();
      top.lineWidth = thick * ratio;
      top.strokeStyle = style.getPropertyValue('--accent');
      top.stroke();
    }
  }

  function hover(event) {
    const box = canvas.getBoundingClientRect(),
      px = event.clientX - box.left,
      py = event.clientY - box.top;
    const i = cells.nearest(
      eye.x + (px * ratio - width / 2) / eye.scale,
      eye.y + (py * ratio - height / 2) / eye.scale,
      (REACH * ratio) / eye.scale,
    );
    point(i, px, py);
  }
  function point(i, px, py) {
    if (i !== hovered) {
      hovered = i;
      mark(getComputedStyle(document.documentElement));
      canvas.classList.toggle('over-one', i >= 0);
      tip.hidden = i < 0;
      if (i >= 0) {
        tip.dataset.id = ids[i];
        tip.replaceChildren(
          shot({id: ids[i], label: labels[i], name: nameOf(labels[i])}),
          h('strong', {}, nameOf(labels[i])),
          h('span.soft.small', {}, trained.has(labels[i]) ? 'seen in training' : 'new to the network'),
        );
      }
    }
    if (i >= 0) {
      const right = px > width / ratio - 170,
        low = py > height / ratio - 210;
      tip.style.transform = `translate(${right ? px - 150 : px + 16}px, ${low ? py - 200 : py + 16}px)`;
    }
  }
  const open = i => {
    if (i >= 0) location.hash = `#/sample/${ids[i]}`;
  };

  // one pointer drags, two pinch
  const pointers = new Map();
  let moved = 0,
    gap = 0;
  canvas.addEventListener('pointerdown', event => {
    canvas.setPointerCapture(event.pointerId);
    pointers.set(event.pointerId, [event.clientX, event.clientY]);
    if (pointers.size === 1) moved = 0;
    gap = 0;
  });
  canvas.addEventListener('pointermove', event => {
    const was = pointers.get(event.pointerId);
    if (!was) {
      hover(event);
      return;
    }
    const now = [event.clientX, event.clientY];
    pointers.set(event.pointerId, now);
    if (pointers.size === 1) {
      moved += Math.hypot(now[0] - was[0], now[1] - was[1]);
      if (moved < 5) return;
      eye.x -= ((now[0] - was[0]) * ratio) / eye.scale;
      eye.y -= ((now[1] - was[1]) * ratio) / eye.scale;
      point(-1);
      hold();
      draw();
    } else if (pointers.size === 2) {
      moved = 99;
      const [a, b] = [...pointers.values()],
        box = canvas.getBoundingClientRect(),
        wide = Math.hypot(a[0] - b[0], a[1] - b[1]);
      eye.x -= ((now[0] - was[0]) * ratio) / 2 / eye.scale;
      eye.y -= ((now[1] - was[1]) * ratio) / 2 / eye.scale;
      if (gap) zoom(wide / gap, ((a[0] + b[0]) / 2 - box.left) * ratio, ((a[1] + b[1]) / 2 - box.top) * ratio);
      gap = wide;
      draw();
    }
  });
  const up = event => {
    const known = pointers.delete(event.pointerId);
    gap = 0;
    if (!known || event.type !== 'pointerup' || moved >= 5) return;
    const before = hovered;
    hover(event);
    // a finger has no hover: the first tap shows, the second opens
    if (event.pointerType !== 'touch' || before === hovered) open(hovered);
  };
  canvas.addEventListener('pointerup', up);
  canvas.addEventListener('pointercancel', up);
  canvas.addEventListener('pointerleave', () => {
    if (!pointers.size) point(-1);
  });
  canvas.addEventListener(
    'wheel',
    event => {
      event.preventDefault();
      const box = canvas.getBoundingClientRect();
      zoom(
        Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0016)),
        (event.clientX - box.left) * ratio,
        (event.clientY - box.top) * ratio,
      );
      hover(event);
    },
    {passive: false},
  );
  canvas.addEventListener('keydown', event => {
    const step = (90 * ratio) / eye.scale;
    const moves = {ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, -step], ArrowDown: [0, step]}[event.key];
    if (moves) {
      eye.x += moves[0];
      eye.y += moves[1];
      hold();
      draw();
    } else if (event.key === '+' || event.key === '=') zoom(1.4);
    else if (event.key === '-') zoom(1 / 1.4);
    else if (event.key === '0') home();
    else if (event.key === 'Enter') {
      open(hovered);
      return;
    } else return;
    event.preventDefault();
    point(cells.nearest(eye.x, eye.y, (60 * ratio) / eye.scale), width / ratio / 2, height / ratio / 2);
  });

  function pick() {
    const label = labelOf(find.value);
    if (find.value && label === undefined) {
      toast(`There is no class ${find.value}`, 'bad');
      return;
    }
    if (label !== undefined) {
      chosen.add(label);
      find.value = '';
    }
    told();
  }
  function told() {
    const inks = palette(order.length, document.documentElement.dataset.theme === 'dark');
    chips.replaceChildren(
      ...[...chosen].map(label =>
        h(
          'button.chip',
          {
            type: 'button',
            'aria-label': `Stop highlighting ${nameOf(label)}`,
            vars: {'--ink-of': css(inks[rank.get(label)])},
            onclick: () => {
              chosen.delete(label);
              told();
            },
          },
          h('i'),
          nameOf(label),
          ' ×',
        ),
      ),
    );
    draw();
  }

  async function go(next) {
    const label = next.query.get('label');
    chosen.clear();
    if (label !== null && rank.has(Number(label))) chosen.add(Number(label));
    marked = next.rest.length ? ids.indexOf(Number(next.rest[0])) : -1;
    if (marked >= 0) Object.assign(eye, {x: x[marked], y: y[marked], scale: fitted() * 6});
    told();
  }
  new ResizeObserver(size).observe(canvas.parentElement);
  size();
  addEventListener('theme', told, {signal});
  await go(here);
  return {
    moved: next => {
      if (next.name !== 'map') return false;
      go(next);
      return true;
    },
  };
}

// the median place of each class, tight classes first
function middles(x, y, labels) {
  const members = new Map();
  for (let i = 0; i < labels.length; i++) {
    if (!members.has(labels[i])) members.set(labels[i], []);
    members.get(labels[i]).push(i);
  }
  const middle = values => values.sort((a, b) => a - b)[values.length >> 1];
  return [...members]
    .map(([label, rows]) => {
      const u = middle(rows.map(i => x[i])),
        v = middle(rows.map(i => y[i]));
      return {label, u, v, spread: middle(rows.map(i => Math.hypot(x[i] - u, y[i] - v))) / Math.sqrt(rows.length)};
    })
    .sort((a, b) => a.spread - b.spread);
}

const clipped = name => (name.length > 26 ? `${name.slice(0, 25)}…` : name);
