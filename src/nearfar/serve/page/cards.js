// Images of samples, with their frames and captions.
import {h} from './dom.js';
import {nameOf, state} from './state.js';

const CHECK_MARK = 'M4 8.5l3 3l5-6.5',
  CROSS = 'M4.5 4.5l7 7m0-7l-7 7';

export const imageUrl = (id, size = 'medium') => `/api/samples/${id}/image?size=${size}&v=${state.info.version}`;

// Texts are shown unchanged. If the name of a sample is a path, only the file name is shown.
const shownName = name => (state.info.accepts.includes('text') ? name : name.split('/').at(-1));
const badge = kind =>
  h(
    'span.badge',
    {},
    h('svg', {viewBox: '0 0 16 16', 'aria-hidden': 'true'}, h('path', {d: kind === 'right' ? CHECK_MARK : CROSS})),
  );

// `kind` is 'right' for a neighbor of the same class as the query, 'wrong' for one of a different class, '' otherwise.
export function thumbnail(sample, {size = 'medium', kind = '', alt = nameOf(sample.label)} = {}) {
  const mark = kind === 'right' || kind === 'wrong' ? badge(kind) : null;
  if (state.info.display === 'text') return h('span.shot', {}, h('span.words', {}, shownName(sample.name)), mark);
  const image = h('img', {src: imageUrl(sample.id, size), alt, loading: 'lazy', draggable: 'false'});
  image.addEventListener('error', () => image.replaceWith(h('span.words.gone', {}, 'unreadable')), {once: true});
  return h(state.info.display === 'drawings' ? 'span.shot.drawing' : 'span.shot', {}, image, mark);
}

export function card(sample, {kind = '', note = '', mark = '', href = `#/sample/${sample.id}`, rank = 0} = {}) {
  const label = nameOf(sample.label);
  const relation = kind === 'right' ? ', same class' : kind === 'wrong' ? ', different class' : '';
  return h(
    `li.card.${kind || 'plain'}`,
    {},
    h(
      'a',
      {
        href,
        title: sample.name,
        'aria-label': `${rank ? `${rank}. ` : ''}${label}${note ? `, distance ${note}` : ''}${mark && `, ${mark}`}${relation}`,
      },
      thumbnail(sample, {kind, alt: ''}),
      h('span.name', {title: label}, label),
      note || mark ? h('span.note', {}, note || mark) : null,
    ),
  );
}
