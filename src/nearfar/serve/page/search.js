// Search by a drawing, a picture, a vector, or from a sample; every query has an address.
import {debounced, h, icon, busy, toast} from './dom.js';
import {Failed, get, search as ask} from './api.js';
import {card, nameOf, shot} from './cards.js';
import {decode, encode, pad} from './pad.js';
import {labelOf, state} from './state.js';

const MORE = 24,
  MOST = 192,
  KEEP = 2 << 20;
const UNDO = 'M9 7H15a5 5 0 0 1 0 10H8M9 7l4-4M9 7l4 4',
  BIN = 'M4 7h16M9 7V4h6v3M6 7l1 13h10l1-13',
  DICE = 'M4 4h16v16H4zM9 9h.01M15 15h.01M15 9h.01M9 15h.01M12 12h.01';
const UPLOAD = 'M12 16V4M7 9l5-5 5 5M4 16v4h16v-4';
const uploads = new Map();

export async function search(view, here, signal) {
  const draws = state.info.takes.includes('drawing'),
    vectors = state.info.takes.includes('vector');
  let k = MORE,
    asking = new AbortController(),
    latest = 0,
    found = null;
  signal.addEventListener('abort', () => asking.abort());

  const board = draws ? pad({label: 'Pad to draw on', changed: debounced(drawn, 60)}) : null;
  const file = h('input', {
    type: 'file',
    accept: 'image/*',
    hidden: true,
    'aria-label': 'Picture to search with',
    onchange: () => take(file.files[0]),
  });
  const text = h('textarea', {
    rows: '6',
    spellcheck: 'false',
    placeholder: `${state.info.width} numbers`,
    'aria-label': 'Vector to search with',
  });
  const asked = h('div.asked');
  const panel = h('section.panel', {'aria-label': 'Query'}, asked);
  const head = h('div.heading'),
    list = h('ol.cards'),
    more = h(
      'button.quiet',
      {
        type: 'button',
        hidden: true,
        onclick: () => {
          k = Math.min(MOST, k + MORE * 2);
          run(here);
        },
      },
      'More',
    );
  const names = h(
    'datalist',
    {id: 'class-names'},
    state.classes.map(each => h('option', {value: each.name})),
  );
  const only = h('input', {
    type: 'search',
    list: 'class-names',
    placeholder: 'all classes',
    'aria-label': 'Only this class',
    onchange: filter,
    oninput: () => {
      if (!only.value) filter();
    },
  });
  const results = h('section.results', {'aria-label': 'Results'}, head, list, h('div.center', {}, more));
  view.append(h('div.search', {}, panel, results), names);

  // a dropped or pasted picture counts anywhere on the page
  addEventListener(
    'drop',
    event => {
      const given = [...event.dataTransfer.files].find(each => each.type.startsWith('image/'));
      if (given) take(given);
    },
    {signal},
  );
  addEventListener(
    'paste',
    event => {
      const given = [...event.clipboardData.files][0];
      if (given) take(given);
    },
    {signal},
  );
  addEventListener('dragenter', () => panel.classList.add('dropping'), {signal});
  for (const name of ['drop', 'dragend', 'mouseout'])
    addEventListener(name, () => panel.classList.remove('dropping'), {signal});

  function address(path) {
    const label = labelOf(only.value);
    return `#/${path}${label === undefined ? '' : `?label=${label}`}`;
  }

  function filter() {
    const label = labelOf(only.value);
    if (only.value && label === undefined) {
      toast(`There is no class ${only.value}`, 'bad');
      return;
    }
    const path = [here.name, ...here.rest].join('/');
    if (path) location.hash = address(path);
  }

  // strokes: the first of a drawing is a new entry of the history, the next ones change it
  function drawn(strokes) {
    if (board.drawing) return;
    if (!strokes.length) {
      location.hash = address('');
      return;
    }
    const next = address(`drawing/${encode(strokes)}`);
    if (here.name === 'drawing') {
      history.replaceState(null, '', next);
      go(parse(next), {keepPad: true});
    } else {
      history.pushState(null, '', next);
      go(parse(next), {keepPad: true});
    }
  }

  async function take(blob) {
    if (!blob) return;
    if (blob.size > state.info.most_bytes) {
      toast(`A picture may have ${state.info.most_bytes >> 20} MB`, 'bad');
      return;
    }
    const key = Math.random().toString(36).slice(2, 8);
    uploads.set(key, blob);
    if (blob.size < KEEP) {
      const reader = new FileReader();
      reader.onload = () => {
        try {
          sessionStorage.setItem(`nearfar-${key}`, reader.result);
        } catch {
          /* full: then only until reload */
        }
      };
      reader.readAsDataURL(blob);
    }
    location.hash = address(`picture/${key}`);
  }

  async function recall(key) {
    if (uploads.has(key)) return uploads.get(key);
    const kept = sessionStorage.getItem(`nearfar-${key}`);
    if (!kept) throw new Failed('This picture was not kept: choose it again.');
    const [, type, data] = kept.match(/^data:([^;]*);base64,(.*)$/);
    return new Blob([Uint8Array.from(atob(data), each => each.charCodeAt(0))], {type});
  }

  function starters() {
    const some = [...state.classes].sort(() => Math.random() - 0.5).slice(0, 24);
    head.replaceChildren(
      h('h1', {}, draws ? 'Draw something, and see what is near' : 'Search with a picture, and see what is near'),
      h(
        'p.soft',
        {},
        `${state.info.samples.toLocaleString('en')} samples of ${state.info.classes.toLocaleString('en')} classes. Or start from one of these:`,
      ),
    );
    list.replaceChildren(...some.map(each => card({id: each.example, label: each.label, name: each.name})));
    more.hidden = true;
  }

  function start() {
    const parts = [];
    if (draws)
      parts.push(
        board.canvas,
        h(
          'div.buttons',
          {},
          h('button', {type: 'button', onclick: () => board.undo()}, icon(UNDO), 'Undo'),
          h(
            'button',
            {
              type: 'button',
              onclick: () => {
                board.clear();
                location.hash = address('');
              },
            },
            icon(BIN),
            'Clear',
          ),
        ),
      );
    if (vectors)
      parts.push(
        text,
        h(
          'div.buttons',
          {},
          h(
            'button',
            {
              type: 'button',
              onclick: () => {
                location.hash = address(
                  `vector/${encodeURIComponent(
                    text.value
                      .trim()
                      .split(/[\s,;]+/)
                      .join(','),
                  )}`,
                );
              },
            },
            'Search',
          ),
        ),
      );
    else
      parts.push(
        h(
          `button.drop${draws ? '.small' : ''}`,
          {type: 'button', onclick: () => file.click()},
          icon(UPLOAD),
          h('span', {}, 'Drop, paste or choose a picture'),
        ),
        file,
      );
    parts.push(
      h(
        'button.quiet',
        {
          type: 'button',
          onclick: () => {
            const any = state.classes[Math.floor(Math.random() * state.classes.length)];
            location.hash = `#/sample/${any.example}`;
          },
        },
        icon(DICE),
        'Surprise me',
      ),
    );
    asked.replaceChildren(...parts);
  }

  function votes(near) {
    const counts = new Map();
    for (const each of near) counts.set(each.label, (counts.get(each.label) ?? 0) + 1);
    const best = [...counts].sort((a, b) => b[1] - a[1]).slice(0, 4);
    return h(
      'ul.votes',
      {'aria-label': 'Most frequent classes'},
      best.map(([label, count]) =>
        h(
          'li',
          {vars: {'--share': `${(100 * count) / near.length}%`}},
          h('a', {href: `#/class/${label}`}, nameOf(label), h('span', {}, ` ${count}`)),
        ),
      ),
    );
  }

  function tell(title) {
    const label = here.query.get('label');
    only.value = label === null ? '' : nameOf(Number(label));
    head.replaceChildren(
      h('div.line', {}, h('h1', {}, title), h('label.only', {}, h('span.soft', {}, 'Only '), only)),
      found.neighbors.length ? votes(found.neighbors) : h('p', {}, 'Nothing was found.'),
      h(
        'p.soft.small',
        {},
        `${found.neighbors.length} nearest, with cosine distance; ${found.milliseconds.toFixed(0)} ms. Click one to search from it.`,
      ),
    );
  }

  async function run(here) {
    asking.abort();
    asking = new AbortController();
    const {signal: stop} = asking,
      turn = ++latest;
    const label = here.query.get('label');
    const parameters = {k, ...(label === null ? {} : {label})};
    results.setAttribute('aria-busy', 'true');
    try {
      if (here.name === 'sample')
        found = await get(
          `/api/samples/${encodeURIComponent(here.rest[0])}/neighbors?${new URLSearchParams(parameters)}`,
          stop,
        );
      else if (here.name === 'drawing') found = await ask({strokes: decode(here.rest[0])}, parameters, stop);
      else if (here.name === 'vector')
        found = await ask({vector: here.rest[0].split(',').map(Number)}, parameters, stop);
      else found = await ask(await recall(here.rest[0]), parameters, stop);
    } catch (error) {
      if (stop.aborted) return;
      head.replaceChildren(h('p.problem', {role: 'alert'}, error.message));
      list.replaceChildren();
      more.hidden = true;
      return;
    } finally {
      if (turn === latest) results.removeAttribute('aria-busy');
    }
    const own = found.query?.label;
    tell(
      own === undefined
        ? here.name === 'drawing'
          ? 'Nearest to your drawing'
          : here.name === 'vector'
            ? 'Nearest to your vector'
            : 'Nearest to your picture'
        : `Nearest to this ${nameOf(own)}`,
    );
    list.replaceChildren(
      ...found.neighbors.map((each, i) =>
        card(each, {
          rank: i + 1,
          note: each.distance.toFixed(3),
          kind: own === undefined ? '' : each.label === own ? 'right' : 'wrong',
        }),
      ),
    );
    more.hidden = found.neighbors.length < k || k >= MOST;
    seen(here);
  }

  function seen(here) {
    panel.querySelector('.seen')?.remove();
    if (found.query) {
      const {query} = found;
      const what = query.split === 'train' ? 'training data' : query.split === 'val' ? 'validation data' : 'test data';
      asked.replaceChildren(
        h(
          `figure.one`,
          {},
          shot(query, {size: 'large'}),
          h(
            'figcaption',
            {},
            h('a', {href: `#/class/${query.label}`}, nameOf(query.label)),
            h('span.soft.small', {}, `${query.name} · ${what}`),
          ),
        ),
        h(
          'div.buttons',
          {},
          h('a.button', {href: `#/map/${query.id}`}, 'On the map'),
          h('a.button', {href: '#/'}, draws ? 'Draw' : 'New search'),
        ),
      );
    } else if (found.seen) {
      const figure = h(
        'figure.seen',
        {},
        h('img', {src: found.seen, alt: 'The query as the network sees it'}),
        h('figcaption.soft.small', {}, state.info.look === 'drawings' ? 'as the network sees it' : 'your picture'),
      );
      panel.append(figure);
    }
  }

  const parse = hash => {
    const [path, query] = hash.slice(2).split('?');
    const [name, ...rest] = path.split('/');
    return {name, rest: rest.map(decodeURIComponent), query: new URLSearchParams(query)};
  };

  function go(next, {keepPad = false} = {}) {
    const before = here;
    here = next;
    k = MORE;
    if (here.name === '') {
      asking.abort();
      latest++;
      results.removeAttribute('aria-busy');
      panel.querySelector('.seen')?.remove();
      board?.clear();
      start();
      starters();
      return true;
    }
    if (here.name !== 'sample' && (before.name === 'sample' || !asked.children.length)) start();
    if (here.name === 'drawing') {
      if (!keepPad) board?.show(decode(here.rest[0]));
    } else board?.clear();
    if (!keepPad && before.name !== here.name) scrollTo({top: 0});
    else if (here.name === 'sample') scrollTo({top: 0, behavior: 'smooth'});
    if (!list.children.length) list.replaceChildren(h('li.wide', {}, busy('Searching')));
    run(here);
    return true;
  }
  start();
  go(here);
  return {moved: go};
}
