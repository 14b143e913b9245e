// Routing: the hash of the URL selects the view, so that back, forward, reload and links work.
import {showAudit} from './audit.js';
import {showClass, showClasses} from './classes.js';
import {busy, problem, showToast} from './dom.js';
import {showDuplicates, showOutliers} from './groups.js';
import {showMap} from './map.js';
import {parseHash} from './route.js';
import {showRun} from './run.js';
import {showSearch} from './search.js';
import {loadState, state} from './state.js';

// Maps the first part of the hash to the tab and to the function that shows the view. This function can return an
// object with a method `onRoute(route)`. If the URL changes within the view, `onRoute` is called and returns whether
// the view has handled the change. If it has not, the view is created again.
const SEARCH = {tab: 'search', show: showSearch};
const VIEWS = {
  '': SEARCH,
  drawing: SEARCH,
  image: SEARCH,
  sample: SEARCH,
  text: SEARCH,
  vector: SEARCH,
  classes: {tab: 'classes', show: showClasses},
  class: {tab: 'classes', show: showClass},
  map: {tab: 'map', show: showMap},
  audit: {tab: 'audit', show: showAudit},
  duplicates: {tab: 'audit', show: showDuplicates},
  outliers: {tab: 'audit', show: showOutliers},
  run: {tab: 'run', show: showRun},
};
const view = document.getElementById('view');
let leaving, current;

async function showRoute() {
  if (location.hash === '#view' && current) return;
  const route = parseHash(location.hash);
  if (!Object.hasOwn(VIEWS, route.name)) route.name = '';
  const {tab, show} = VIEWS[route.name];
  // If the URL changes within the same view, the map keeps its position and the search keeps its drawing.
  if (current?.show === show && current.onRoute?.(route)) return;
  leaving?.abort();
  leaving = new AbortController();
  const {signal} = leaving;
  for (const link of document.querySelectorAll('.tabs a')) {
    if (link.dataset.view === tab) link.setAttribute('aria-current', 'page');
    else link.removeAttribute('aria-current');
  }
  document.body.dataset.view = tab;
  view.replaceChildren();
  current = {show};
  try {
    const result = await show(view, route, signal);
    if (!signal.aborted) current.onRoute = result?.onRoute;
  } catch (error) {
    if (signal.aborted) return;
    view.replaceChildren(problem(error.message));
  }
}

document.getElementById('theme').addEventListener('click', () => dispatchEvent(new Event('toggle-theme')));
document.querySelector('.skip').addEventListener('click', event => {
  event.preventDefault();
  view.focus();
});
addEventListener('dragover', event => event.preventDefault());
addEventListener('drop', event => event.preventDefault());
addEventListener('unhandledrejection', event => {
  if (event.reason?.name !== 'AbortError') showToast(event.reason?.message ?? 'Something went wrong', 'bad');
});

view.append(busy('Opening the run'));
try {
  await loadState();
  document.getElementById('title').textContent = state.info.title;
  document.body.classList.toggle('of-texts', state.info.accepts.includes('text'));
  document.title = `${state.info.title} · nearfar`;
  addEventListener('hashchange', showRoute);
  await showRoute();
} catch (error) {
  view.replaceChildren(problem(error.message));
}
