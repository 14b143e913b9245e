// The map of the embeddings.
import {getWhenReady} from './api.js';
import {createCamera} from './camera.js';
import {thumbnail} from './cards.js';
import {palette, toCss} from './colors.js';
import {busy, formatCount, h, optionsOf, showToast} from './dom.js';
import {createGrid} from './grid.js';
import {addMapControls} from './map_controls.js';
import {createPainter} from './map_painter.js';
import {isTrained, labelOf, nameOf, state} from './state.js';

const HOVER_RADIUS = 18,
  CENTER_RADIUS = 120,
  SAMPLE_ZOOM = 6,
  BUTTON_ZOOM = 1.6;

export async function showMap(view, route, signal) {
  const wait = busy('Computing the map. This can take minutes the first time; the result is cached.');
  view.append(wait);
  const summary = await getWhenReady('/api/map', signal);
  const points = readPoints(await getWhenReady('/api/map/points', signal, {binary: true}), summary.points);
  wait.remove();
  const {x, y, ids, labels} = points;
  const grid = createGrid(x, y),
    camera = createCamera(x, y);
  const order = new Map(state.classes.map((item, i) => [item.label, i]));
  const trained = new Set(state.classes.filter(isTrained).map(item => item.label));
  const highlighted = new Set();
  let hovered = -1,
    selected = -1,
    isScheduled = false;

  const canvas = h('canvas.plane', {
    tabindex: '0',
    role: 'application',
    'aria-label': `Map of ${summary.points} samples. Arrow keys move, plus and minus zoom, Enter opens the sample in the center.`,
  });
  const overlay = h('canvas.overlay', {'aria-hidden': 'true'});
  const tip = h('div.tip', {hidden: true, role: 'status'});
  const classInput = h('input', {
    type: 'search',
    list: 'map-names',
    placeholder: 'Highlight a class',
    'aria-label': 'Highlight a class',
    onchange: highlightClass,
  });
  const chips = h('div.chips'),
    legend = h('div.legend-line');
  const hasBoth = trained.size && trained.size < order.size;
  const colorBy = h(
    'select',
    {'aria-label': 'Color by', onchange: draw},
    h('option', {value: 'class'}, 'color by class'),
    hasBoth ? h('option', {value: 'split'}, 'color by use in training') : null,
  );
  const showProxies = h('input', {type: 'checkbox', checked: true, onchange: draw});
  const zoomButton = (text, label, action) =>
    h('button.icon', {type: 'button', 'aria-label': label, onclick: () => change(action)}, text);
  view.append(
    h(
      'div.mapview',
      {},
      h(
        'div.maptools',
        {},
        classInput,
        colorBy,
        summary.proxies.length ? h('label.check', {}, showProxies, 'proxies') : null,
        legend,
        chips,
      ),
      h(
        'div.stage',
        {},
        canvas,
        overlay,
        tip,
        h(
          'div.zoom',
          {},
          zoomButton('+', 'Zoom in', () => camera.zoom(BUTTON_ZOOM)),
          zoomButton('−', 'Zoom out', () => camera.zoom(1 / BUTTON_ZOOM)),
          zoomButton('⤢', 'Show the full map', () => camera.showAll()),
        ),
        h(
          'p.method.soft',
          {},
          `${formatCount(summary.points)} samples, placed by ${summary.method}. Points that are close to each other have similar embeddings. Distances between groups mean little.`,
        ),
      ),
    ),
    optionsOf(
      'map-names',
      state.classes.map(item => item.name),
    ),
  );
  const painter = createPainter({
    canvas,
    overlay,
    points,
    grid,
    camera,
    proxies: summary.proxies,
    highlighted,
    trained,
    redraw: draw,
  });

  function resize() {
    const ratio = Math.min(2, devicePixelRatio || 1),
      box = canvas.parentElement.getBoundingClientRect();
    if (!box.width) return;
    camera.resize(Math.round(box.width * ratio), Math.round(box.height * ratio), ratio);
    painter.resize();
    draw();
  }

  function change(action) {
    action();
    draw();
  }

  function draw() {
    if (isScheduled) return;
    isScheduled = true;
    requestAnimationFrame(() => {
      isScheduled = false;
      if (!signal.aborted && camera.width) paint();
    });
  }

  function paint() {
    const bySplit = colorBy.value === 'split';
    const colors = painter.paint({bySplit, showProxies: showProxies.checked});
    paintRings();
    const entries = [
      ['used for training', colors.trained],
      ['not used for training', colors.untrained],
    ];
    legend.replaceChildren(
      ...(bySplit ? entries.map(([name, rgb]) => h('span', {}, h('i', {vars: {'--dot': toCss(rgb)}}), name)) : []),
    );
  }
  const paintRings = () =>
    painter.paintRings([
      [selected, 4],
      [hovered, 2.5],
    ]);

  function hoverAt(event) {
    if (!event) {
      setHovered(-1);
      return;
    }
    const box = canvas.getBoundingClientRect(),
      px = event.clientX - box.left,
      py = event.clientY - box.top;
    const [u, v] = camera.toMap(px * camera.ratio, py * camera.ratio);
    setHovered(grid.nearest(u, v, (HOVER_RADIUS * camera.ratio) / camera.scale), px, py);
  }
  function hoverAtCenter() {
    const nearest = grid.nearest(camera.x, camera.y, (CENTER_RADIUS * camera.ratio) / camera.scale);
    setHovered(nearest, camera.width / camera.ratio / 2, camera.height / camera.ratio / 2);
  }
  function setHovered(i, px, py) {
    if (i !== hovered) {
      hovered = i;
      paintRings();
      canvas.classList.toggle('over-point', i >= 0);
      tip.hidden = i < 0;
      if (i >= 0) showTip(ids[i], labels[i]);
    }
    if (i >= 0) {
      const isRight = px > camera.width / camera.ratio - 170,
        isLow = py > camera.height / camera.ratio - 210;
      tip.style.transform = `translate(${isRight ? px - 150 : px + 16}px, ${isLow ? py - 200 : py + 16}px)`;
    }
  }
  function showTip(id, label) {
    tip.dataset.id = id;
    tip.replaceChildren(
      thumbnail({id, label, name: nameOf(label)}),
      h('strong', {}, nameOf(label)),
      h('span.soft.small', {}, trained.has(label) ? 'used for training' : 'not used for training'),
    );
  }

  function highlightClass() {
    const label = labelOf(classInput.value);
    if (classInput.value && label === undefined) {
      showToast(`There is no class ${classInput.value}`, 'bad');
      return;
    }
    if (label !== undefined) {
      highlighted.add(label);
      classInput.value = '';
    }
    showChips();
  }
  function showChips() {
    const colors = palette(order.size, document.documentElement.dataset.theme === 'dark');
    chips.replaceChildren(
      ...[...highlighted].map(label =>
        h(
          'button.chip',
          {
            type: 'button',
            'aria-label': `Stop highlighting ${nameOf(label)}`,
            vars: {'--dot': toCss(colors[order.get(label)])},
            onclick: () => {
              highlighted.delete(label);
              showChips();
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

  function openRoute(next) {
    const label = next.query.get('label');
    highlighted.clear();
    if (label !== null && order.has(Number(label))) highlighted.add(Number(label));
    selected = next.rest.length ? ids.indexOf(Number(next.rest[0])) : -1;
    if (selected >= 0) camera.moveTo(x[selected], y[selected], camera.fitScale * SAMPLE_ZOOM);
    showChips();
    return true;
  }

  addMapControls(canvas, camera, {
    onChange: draw,
    onHover: hoverAt,
    onCenter: hoverAtCenter,
    onOpen: () => {
      if (hovered >= 0) location.hash = `#/sample/${ids[hovered]}`;
    },
    hovered: () => hovered,
  });
  new ResizeObserver(resize).observe(canvas.parentElement);
  resize();
  addEventListener('theme', showChips, {signal});
  openRoute(route);
  return {onRoute: openRoute};
}

// Splits the bytes into four columns, which are stored one after the other: x, y, id and label of all points.
function readPoints(bytes, count) {
  const column = (Type, i) => new Type(bytes, 4 * count * i, count);
  return {
    x: column(Float32Array, 0),
    y: column(Float32Array, 1),
    ids: column(Int32Array, 2),
    labels: column(Int32Array, 3),
  };
}
