// Routes: the hash says what is shown, so that back, forward, reload and links work.
import {busy, h, toast} from './dom.js';
import {load, state} from './state.js';
import {audit} from './audit.js';
import {classes, oneClass} from './classes.js';
import {map} from './map.js';
import {run} from './run.js';
import {search} from './search.js';

const VIEWS = {
  '': search,
  drawing: search,
  picture: search,
  sample: search,
  vector: search,
  classes,
  class: oneClass,
  map,
  audit,
  run,
};
const TAB = {
  '': 'search',
  drawing: 'search',
  picture: 'search',
  sample: 'search',
  vector: 'search',
  classes: 'classes',
  class: 'classes',
  map: 'map',
  audit: 'audit',
  run: 'run',
};
const view = document.getElementById('view');
let leave, shown;

export function route() {
  const [path, query] = location.hash.replace(/^#\/?/, '').split('?');
  const [name = '', ...rest] = path.split('/');
  return {name: name in VIEWS ? name : '', rest: rest.map(decodeURIComponent), query: new URLSearchParams(query)};
}

async function show() {
  if (location.hash === '#view') return;
  const here = route();
  // a view that stays takes the new address itself (the map keeps its place, the search its pad)
  if (shown && shown.view === VIEWS[here.name] && shown.moved?.(here)) return;
  leave?.abort();
  leave = new AbortController();
  const {signal} = leave;
  for (const tab of document.querySelectorAll('.tabs a')) {
    if (tab.dataset.view === TAB[here.name]) tab.setAttribute('aria-current', 'page');
    else tab.removeAttribute('aria-current');
  }
  document.body.dataset.view = TAB[here.name];
  view.replaceChildren();
  shown = {view: VIEWS[here.name]};
  try {
    const made = await VIEWS[here.name](view, here, signal);
    if (!signal.aborted) shown.moved = made?.moved;
  } catch (error) {
    if (signal.aborted) return;
    view.replaceChildren(h('p.problem', {role: 'alert'}, error.message));
  }
}

document.getElementById('theme').addEventListener('click', () => dispatchEvent(new Event('choose-theme')));
document.querySelector('.skip').addEventListener('click', event => {
  event.preventDefault();
  view.focus();
});
addEventListener('dragover', event => event.preventDefault());
addEventListener('drop', event => event.preventDefault());
addEventListener('unhandledrejection', event => {
  if (event.reason?.name !== 'AbortError') toast(event.reason?.message ?? 'Something went wrong', 'bad');
});

view.append(busy('Opening the run'));
try {
  await load();
  document.getElementById('title').textContent = state.info.title;
  document.title = `${state.info.title} · nearfar`;
  addEventListener('hashchange', show);
  await show();
} catch (error) {
  view.replaceChildren(h('p.problem', {role: 'alert'}, error.message));
}
