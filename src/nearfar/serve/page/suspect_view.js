// One suspect of the audit: the sample, the question, the buttons and the evidence.
import {thumbnail} from './cards.js';
import {formatCount, h, showToast} from './dom.js';
import {labelOf, nameOf} from './state.js';

export const DECISIONS = {keep: 'kept', relabel: 'relabeled', remove: 'removed'};

const key = letter => h('kbd', {}, letter);

// Returns the content of the article, and the function `focusRelabel`, which focuses the input for another class. The
// buttons call `decide(decision, label)`.
export function suspectView(suspect, rank, total, decide) {
  const label = suspect.sample.label,
    other = suspect.suggested === label ? suspect.rival : suspect.suggested;
  const input = h('input', {
    type: 'search',
    list: 'audit-names',
    placeholder: 'other class',
    'aria-label': 'Relabel as',
    autocomplete: 'off',
  });
  function submit(event) {
    event.preventDefault();
    const chosen = labelOf(input.value);
    if (chosen === undefined) showToast(`There is no class ${input.value}`, 'bad');
    else if (chosen === label) decide('keep');
    else decide('relabel', chosen);
  }
  const content = [
    h(
      'div.left',
      {},
      h('figure.one', {}, thumbnail(suspect.sample, {size: 'large'})),
      h('p.soft.small', {}, `#${rank + 1} of ${formatCount(total)} · ${suspect.sample.name}`),
    ),
    h(
      'div.right-side',
      {},
      h(
        'h2',
        {},
        h('span.current', {}, nameOf(label)),
        h('span.soft', {}, suspect.suggested === label ? ' or ' : ' → '),
        h('span.suggested', {}, nameOf(other)),
        h('span.soft', {}, '?'),
      ),
      decisionBadge(suspect),
      h('p.reason', {}, suspect.reason),
      h(
        'div.choices',
        {},
        h(
          'button.accept',
          {type: 'button', onclick: () => decide('relabel', other)},
          key('A'),
          ` Relabel as ${nameOf(other)}`,
        ),
        h('button.keep', {type: 'button', onclick: () => decide('keep')}, key('R'), ` Keep ${nameOf(label)}`),
        h('button.remove', {type: 'button', onclick: () => decide('remove')}, key('X'), ' Remove from the data'),
        h(
          'form.relabel',
          {onsubmit: submit},
          h('label', {}, key('L'), ' ', input),
          h('button', {}, 'Relabel'),
        ),
      ),
      h(
        'p.keys.soft.small',
        {},
        [
          ['A', 'accept the suggestion'],
          ['R', 'reject it and keep the label'],
          ['L', 'choose another class'],
          ['X', 'remove'],
          ['U', 'undo'],
          ['←', 'previous'],
          ['→', 'next'],
        ].map(([letter, meaning]) => [key(letter), ` ${meaning} `]),
      ),
    ),
    h(
      'div.evidence',
      {},
      strip('Nearest neighbors', suspect.neighbors, label, other),
      strip(`Other samples of ${nameOf(label)}`, suspect.classmates, label, other),
    ),
  ];
  const focusRelabel = () => {
    input.focus();
    input.select();
  };
  return {content, focusRelabel};
}

function decisionBadge({decision, new_label}) {
  if (!decision) return null;
  const text = decision === 'relabel' ? `relabeled as ${nameOf(new_label)}` : DECISIONS[decision];
  return h(`span.state.${decision}`, {}, text);
}

const strip = (title, samples, label, other) =>
  h(
    'section',
    {},
    h('h3', {}, title),
    h(
      'ul.strip',
      {},
      samples.map(sample =>
        h(
          `li.${sample.label === label ? 'current' : sample.label === other ? 'suggested' : 'unrelated'}`,
          {},
          h(
            'a',
            {href: `#/sample/${sample.id}`, title: sample.name},
            thumbnail(sample, {alt: ''}),
            h('span.name', {title: nameOf(sample.label)}, nameOf(sample.label)),
          ),
        ),
      ),
    ),
  );
