// The class that the nearest neighbors of a query vote for, or "unknown". Only calibrated models give one.
import {formatCount, h} from './dom.js';
import {nameOf, state} from './state.js';

// A probability is never shown as certain, because it is an estimate.
export function formatPercent(probability) {
  const percent = 100 * probability;
  if (percent > 99) return '>99%';
  return percent < 1 ? '<1%' : `${Math.round(percent)}%`;
}

const classLink = label => h('a', {href: `#/class/${label}`}, nameOf(label));

export function decisionLine({label, probability, candidates}) {
  const others = candidates.filter(candidate => candidate.label !== label);
  const listed = others.map(({label: other, score}, i) => [
    i ? ', ' : '',
    classLink(other),
    ` ${formatPercent(score)}`,
  ]);
  if (label === null)
    return h(
      'p.decision.unknown',
      {role: 'status'},
      h('strong', {}, 'Class: unknown'),
      h(
        'span.soft',
        {},
        `Probably none of the ${formatCount(state.info.classes)} classes.`,
        listed.length ? [' Votes: ', listed, '.'] : '',
      ),
    );
  return h(
    'p.decision',
    {role: 'status'},
    h('strong', {}, 'Class: ', classLink(label), ` ${formatPercent(probability)}`),
    h(
      'span.soft',
      {title: 'The probability that this class is right if the query has one of the classes of this collection'},
      listed.length ? ['Other votes: ', listed, '.'] : 'All votes are for this class.',
    ),
  );
}
