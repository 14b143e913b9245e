// Pictures of samples, wherever they are shown.
import {h} from './dom.js';
import {state} from './state.js';

const TICK = 'M4 8.5l3 3l5-6.5',
  CROSS = 'M4.5 4.5l7 7m0-7l-7 7';

export const pictureOf = (id, size = 'medium') => `/api/samples/${id}/picture?size=${size}&v=${state.info.version}`;
export const nameOf = label => state.names.get(label) ?? `class ${label}`;

const fileName = name => name.split('/').at(-1);
const badge = kind =>
  h(
    'span.badge',
    {},
    h('svg', {viewBox: '0 0 16 16', 'aria-hidden': 'true'}, h('path', {d: kind === 'right' ? TICK : CROSS})),
  );

export function shot(sample, {size = 'medium', kind = '', alt = nameOf(sample.label)} = {}) {
  const mark = kind === 'right' || kind === 'wrong' ? badge(kind) : null;
  if (state.info.look === 'words') return h('span.shot', {}, h('span.words', {}, fileName(sample.name)), mark);
  const image = h('img', {src: pictureOf(sample.id, size), alt, loading: 'lazy', draggable: 'false'});
  image.addEventListener('error', () => image.replaceWith(h('span.words.gone', {}, 'cannot be read')), {once: true});
  return h(state.info.look === 'drawings' ? 'span.shot.drawing' : 'span.shot', {}, image, mark);
}

export function card(sample, {kind = '', note = '', href = `#/sample/${sample.id}`, rank = 0} = {}) {
  const label = nameOf(sample.label);
  const said = kind === 'right' ? ', same class' : kind === 'wrong' ? ', another class' : '';
  return h(
    `li.card.${kind || 'plain'}`,
    {},
    h(
      'a',
      {
        href,
        title: sample.name,
        'aria-label': `${rank ? `${rank}. ` : ''}${label}${note ? `, distance ${note}` : ''}${said}`,
      },
      shot(sample, {kind, alt: ''}),
      h('span.name', {}, label),
      note ? h('span.note', {}, note) : null,
    ),
  );
}
