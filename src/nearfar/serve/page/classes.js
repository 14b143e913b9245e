// All classes with an example each, and the samples of one.
import {h} from './dom.js';
import {get} from './api.js';
import {card, nameOf, shot} from './cards.js';
import {state} from './state.js';

const STEP = 120;

export function classes(view, here, signal) {
  const list = h('ol.cards'),
    count = h('p.soft.small', {'aria-live': 'polite'});
  const seen = state.classes.some(each => each.split === 'train') && state.classes.some(each => each.split !== 'train');
  const find = h('input', {type: 'search', placeholder: 'Find a class', 'aria-label': 'Find a class', oninput: fill});
  const which = h(
    'select',
    {'aria-label': 'Which classes', onchange: fill},
    h('option', {value: ''}, 'all classes'),
    h('option', {value: 'train'}, 'training saw them'),
    h('option', {value: 'new'}, 'new to the network'),
  );
  let shown = STEP;
  function fill() {
    const words = find.value.trim().toLowerCase();
    const found = state.classes.filter(
      each =>
        each.name.toLowerCase().includes(words) &&
        (!which.value || (each.split === 'train') === (which.value === 'train')),
    );
    count.textContent = `${found.length.toLocaleString('en')} of ${state.classes.length.toLocaleString('en')} classes`;
    list.replaceChildren(
      ...found
        .slice(0, shown)
        .map(each =>
          h(
            'li.card.plain',
            {},
            h(
              'a',
              {href: `#/class/${each.label}`},
              shot({id: each.example, label: each.label, name: each.name}, {alt: ''}),
              h('span.name', {}, each.name),
              h('span.note', {}, `${each.count}`),
            ),
          ),
        ),
    );
    foot.hidden = found.length <= shown;
  }
  const foot = h(
    'div.center',
    {},
    h(
      'button.quiet',
      {
        type: 'button',
        onclick: () => {
          shown += STEP * 2;
          fill();
        },
      },
      'More',
    ),
  );
  view.append(
    h(
      'div.column',
      {},
      h('div.line', {}, h('h1', {}, 'Classes'), h('div.tools', {}, find, seen ? which : null)),
      count,
      list,
      foot,
    ),
  );
  fill();
  whenSeen(
    foot,
    () => {
      if (!foot.hidden) {
        shown += STEP;
        fill();
      }
    },
    signal,
  );
  find.focus({preventScroll: true});
}

export async function oneClass(view, here, signal) {
  const label = Number(here.rest[0]);
  const list = h('ol.cards'),
    note = h('p.soft.small'),
    foot = h('div.center', {hidden: true}, h('button.quiet', {type: 'button', onclick: more}, 'More'));
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
          h('a.button', {href: `#/map?label=${label}`}, 'On the map'),
          h('a.button', {href: '#/classes'}, 'All classes'),
        ),
      ),
      note,
      list,
      foot,
    ),
  );
  let offset = 0,
    under = false;
  async function more() {
    if (under) return;
    under = true;
    const part = await get(`/api/classes/${label}?offset=${offset}&limit=60`, signal);
    under = false;
    offset += part.samples.length;
    const split = state.classes.find(each => each.label === label)?.split;
    note.textContent = `${part.total.toLocaleString('en')} samples${split === 'train' ? ', in the training data' : ', of a class that training never showed'}`;
    list.append(...part.samples.map(each => card(each)));
    foot.hidden = offset >= part.total;
  }
  await more();
  whenSeen(
    foot,
    () => {
      if (!foot.hidden) more();
    },
    signal,
  );
}

function whenSeen(element, work, signal) {
  const observer = new IntersectionObserver(
    entries => {
      if (entries.some(each => each.isIntersecting)) work();
    },
    {rootMargin: '400px'},
  );
  observer.observe(element);
  signal.addEventListener('abort', () => observer.disconnect());
}
