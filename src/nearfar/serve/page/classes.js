// Two views: all classes with one example each, and the samples of one class.
import {getJson} from './api.js';
import {card, thumbnail} from './cards.js';
import {formatCount, h, onVisible} from './dom.js';
import {isTrained, nameOf, state} from './state.js';

const STEP = 120,
  SAMPLES = 60;

export function showClasses(view, route, signal) {
  const list = h('ol.cards'),
    count = h('p.soft.small', {'aria-live': 'polite'});
  const hasBoth = state.classes.some(isTrained) && !state.classes.every(isTrained);
  const search = h('input', {
    type: 'search',
    placeholder: 'Find a class',
    'aria-label': 'Find a class',
    oninput: update,
  });
  const filter = h(
    'select',
    {'aria-label': 'Classes to show', onchange: update},
    h('option', {value: ''}, 'all classes'),
    h('option', {value: 'train'}, 'used for training'),
    h('option', {value: 'new'}, 'not used for training'),
  );
  let limit = STEP;

  function update() {
    const text = search.value.trim().toLowerCase();
    const matches = state.classes.filter(
      item =>
        item.name.toLowerCase().includes(text) &&
        (!filter.value || isTrained(item) === (filter.value === 'train')),
    );
    count.textContent = `${formatCount(matches.length)} of ${formatCount(state.classes.length)} classes`;
    list.replaceChildren(...matches.slice(0, limit).map(classCard));
    more.hidden = matches.length <= limit;
  }
  function showMore(step) {
    limit += step;
    update();
  }
  const more = h('div.center', {}, h('button.quiet', {type: 'button', onclick: () => showMore(2 * STEP)}, 'More'));
  view.append(
    h(
      'div.column',
      {},
      h('div.line', {}, h('h1', {}, 'Classes'), h('div.tools', {}, search, hasBoth ? filter : null)),
      count,
      list,
      more,
    ),
  );
  update();
  onVisible(more, () => more.hidden || showMore(STEP), signal);
}

const classCard = item =>
  h(
    'li.card.plain',
    {},
    h(
      'a',
      {href: `#/class/${item.label}`},
      thumbnail({id: item.example, label: item.label, name: item.name}, {alt: ''}),
      h('span.name', {title: item.name}, item.name),
      h('span.note', {}, `${item.count}`),
    ),
  );

export async function showClass(view, route, signal) {
  const label = Number(route.rest[0]);
  const list = h('ol.cards'),
    note = h('p.soft.small'),
    more = h('div.center', {hidden: true}, h('button.quiet', {type: 'button', onclick: loadMore}, 'More'));
  view.append(
    h(
      'div.column',
      {},
      h(
        'div.line',
        {},
        h('h1', {}, nameOf(label)),
        h(
          'div.tools',
          {},
          h('a.button', {href: `#/map?label=${label}`}, 'Show on map'),
          h('a.button', {href: '#/classes'}, 'All classes'),
        ),
      ),
      note,
      list,
      more,
    ),
  );
  let offset = 0,
    isLoading = false;
  async function loadMore() {
    if (isLoading) return;
    isLoading = true;
    const page = await getJson(`/api/classes/${label}?offset=${offset}&limit=${SAMPLES}`, signal);
    isLoading = false;
    offset += page.samples.length;
    const wasTrained = state.classes.some(item => item.label === label && isTrained(item));
    note.textContent = `${formatCount(page.total)} samples of a class ${wasTrained ? 'used' : 'not used'} for training`;
    list.append(...page.samples.map(sample => card(sample)));
    more.hidden = offset >= page.total;
  }
  await loadMore();
  onVisible(more, () => more.hidden || loadMore(), signal);
}
