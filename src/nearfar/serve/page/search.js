// Search by a drawing, an image, a text, a vector or a sample. Every query has its own URL.
import {getJson, postSearch} from './api.js';
import {card} from './cards.js';
import {decisionLine, formatPercent} from './class_decision.js';
import {busy, formatCount, h, optionsOf, problem, showToast} from './dom.js';
import {decodeStrokes, encodeStrokes} from './drawing_pad.js';
import {accepts, createQueryPanel} from './query_panel.js';
import {parseHash} from './route.js';
import {labelOf, nameOf, state} from './state.js';
import {loadUpload, saveUpload} from './uploads.js';

const STEP = 24,
  MAX_RESULTS = 192,
  EXAMPLES = 24;

export function showSearch(view, firstRoute, signal) {
  let route = firstRoute,
    k = STEP,
    request = new AbortController(),
    requestNumber = 0;
  signal.addEventListener('abort', () => request.abort());

  const panel = createQueryPanel({
    onStrokes: searchStrokes,
    onImage: searchImage,
    onVector: text => {
      location.hash = addressOf(`vector/${encodeURIComponent(text)}`);
    },
    onWords: text => {
      location.hash = addressOf(`text/${encodeURIComponent(text)}`);
    },
    onClear: () => {
      location.hash = addressOf('');
    },
    signal,
  });
  const heading = h('div.heading'),
    list = h('ol.cards'),
    more = h('button.quiet', {type: 'button', hidden: true, onclick: showMore}, 'More');
  const classInput = h('input', {
    type: 'search',
    list: 'class-names',
    placeholder: 'all classes',
    'aria-label': 'Only this class',
    onchange: filterByClass,
    oninput: () => {
      if (!classInput.value) filterByClass();
    },
  });
  const results = h('section.results', {'aria-label': 'Results'}, heading, list, h('div.center', {}, more));
  view.append(
    h('div.search', {}, panel.element, results),
    optionsOf(
      'class-names',
      state.classes.map(item => item.name),
    ),
  );

  function addressOf(path) {
    const label = labelOf(classInput.value);
    return `#/${path}${label === undefined ? '' : `?label=${label}`}`;
  }

  function filterByClass() {
    if (classInput.value && labelOf(classInput.value) === undefined) {
      showToast(`There is no class ${classInput.value}`, 'bad');
      return;
    }
    const path = [route.name, ...route.rest.map(encodeURIComponent)].join('/');
    if (path) location.hash = addressOf(path);
  }

  // The first stroke of a drawing adds an entry to the browser history; further strokes replace that entry.
  function searchStrokes(strokes) {
    if (panel.pad.isDrawing) return;
    if (!strokes.length) {
      location.hash = addressOf('');
      return;
    }
    const address = addressOf(`drawing/${encodeStrokes(strokes)}`);
    if (route.name === 'drawing') history.replaceState(null, '', address);
    else history.pushState(null, '', address);
    openRoute(parseHash(address), {keepPad: true});
  }

  function searchImage(blob) {
    if (!blob) return;
    if (blob.size > state.info.max_bytes) {
      showToast(`The image is too large: the limit is ${state.info.max_bytes >> 20} MB`, 'bad');
      return;
    }
    location.hash = addressOf(`image/${saveUpload(blob)}`);
  }

  function showExamples() {
    const examples = [...state.classes].sort(() => Math.random() - 0.5).slice(0, EXAMPLES);
    const title = accepts('drawing')
      ? 'Draw something to find similar drawings'
      : `Search with ${accepts('text') ? 'a text' : accepts('vector') ? 'a vector' : 'an image'}`;
    const counts = `${formatCount(state.info.samples)} samples of ${formatCount(state.info.classes)} classes.`;
    heading.replaceChildren(
      h('h1', {}, title),
      ...(state.info.not_shown ? [h('p.soft.not-shown', {}, state.info.not_shown)] : []),
      h('p.soft', {}, `${counts} Or start from one of these samples:`),
    );
    list.replaceChildren(
      ...examples.map(item => card({id: item.example, label: item.label, name: item.name})),
    );
    more.hidden = true;
  }

  function showMore() {
    k = Math.min(MAX_RESULTS, k + 2 * STEP);
    runSearch();
  }

  function showHeading(response) {
    const {query, neighbors, decision, milliseconds} = response;
    const label = route.query.get('label');
    classInput.value = label === null ? '' : nameOf(Number(label));
    const title = query ? `Nearest to this ${nameOf(query.label)}` : `Nearest to your ${route.name}`;
    heading.replaceChildren(
      h('div.line', {}, h('h1', {}, title), h('label.only', {}, h('span.soft', {}, 'Only '), classInput)),
      ...(decision ? [decisionLine(decision)] : []),
      neighbors.length ? classCounts(neighbors) : h('p', {}, 'No samples found.'),
      h(
        'p.soft.small',
        {},
        `${neighbors.length} nearest samples by cosine distance, in ${milliseconds.toFixed(0)} ms. Click a sample to use it as the query.`,
      ),
    );
  }

  function fetchResults(parameters, stop) {
    const [value] = route.rest;
    if (route.name === 'sample')
      return getJson(`/api/samples/${encodeURIComponent(value)}/neighbors?${new URLSearchParams(parameters)}`, stop);
    if (route.name === 'drawing') return postSearch({strokes: decodeStrokes(value)}, parameters, stop);
    if (route.name === 'text') return postSearch({text: value}, parameters, stop);
    if (route.name === 'vector') return postSearch({vector: value.split(',').map(Number)}, parameters, stop);
    return postSearch(loadUpload(value), parameters, stop);
  }

  async function runSearch() {
    request.abort();
    request = new AbortController();
    const {signal: stop} = request,
      number = ++requestNumber,
      label = route.query.get('label');
    results.setAttribute('aria-busy', 'true');
    let response;
    try {
      response = await fetchResults({k, ...(label === null ? {} : {label})}, stop);
    } catch (error) {
      if (stop.aborted) return;
      heading.replaceChildren(problem(error.message));
      list.replaceChildren();
      more.hidden = true;
      return;
    } finally {
      if (number === requestNumber) results.removeAttribute('aria-busy');
    }
    const {query, preview, neighbors} = response;
    showHeading(response);
    list.replaceChildren(
      ...neighbors.map((sample, i) =>
        card(sample, {
          rank: i + 1,
          note: distanceAndSame(sample),
          kind: !query ? '' : sample.label === query.label ? 'right' : 'wrong',
        }),
      ),
    );
    more.hidden = neighbors.length < k || k >= MAX_RESULTS;
    panel.clearPreview();
    if (query) panel.showSample(query);
    else if (preview) panel.showPreview(preview);
  }

  function openRoute(next, {keepPad = false} = {}) {
    const previous = route;
    route = next;
    k = STEP;
    if (route.name === '') {
      request.abort();
      requestNumber++;
      results.removeAttribute('aria-busy');
      panel.clearPreview();
      panel.pad?.clear();
      panel.showInputs();
      showExamples();
      return true;
    }
    if (route.name !== 'sample' && (previous.name === 'sample' || panel.isEmpty)) panel.showInputs();
    if (route.name === 'text') panel.showText(route.rest[0]);
    if (route.name !== 'drawing') panel.pad?.clear();
    else if (!keepPad) panel.pad?.show(decodeStrokes(route.rest[0]));
    if (!keepPad && previous.name !== route.name) scrollTo({top: 0});
    else if (route.name === 'sample') scrollTo({top: 0, behavior: 'smooth'});
    if (!list.children.length) list.replaceChildren(h('li.wide', {}, busy('Searching')));
    runSearch();
    return true;
  }
  panel.showInputs();
  openRoute(route);
  return {onRoute: openRoute};
}

// A calibrated model also gives the probability that a neighbor has the class of the query.
function distanceAndSame({distance, same}) {
  return same === null ? distance.toFixed(3) : `${distance.toFixed(3)}, same: ${formatPercent(same)}`;
}

function classCounts(samples) {
  const counts = new Map();
  for (const {label} of samples) counts.set(label, (counts.get(label) ?? 0) + 1);
  const mostFrequent = [...counts].sort((a, b) => b[1] - a[1]).slice(0, 4);
  return h(
    'ul.class-counts',
    {'aria-label': 'Most frequent classes'},
    mostFrequent.map(([label, count]) =>
      h(
        'li',
        {vars: {'--share': `${(100 * count) / samples.length}%`}},
        h('a', {href: `#/class/${label}`, title: nameOf(label)}, nameOf(label), h('span', {}, ` ${count}`)),
      ),
    ),
  );
}
