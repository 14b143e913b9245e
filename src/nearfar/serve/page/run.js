// Scores, training curves and settings of the run.
import {h} from './dom.js';
import {figures, get} from './api.js';
import {state} from './state.js';

export async function run(view, here, signal) {
  const [about, curves] = await Promise.all([get('/api/run', signal), figures('/api/run/curves')]);
  signal.throwIfAborted();
  view.append(
    h(
      'div.column',
      {},
      h('h1', {}, state.info.title),
      about.scores.length
        ? [h('h2', {}, 'Scores'), scores(about)]
        : h('p', {}, 'This run has no scores yet: its training is not finished.'),
      curves.length
        ? [
            h('h2', {}, 'Training'),
            h(
              'div.curves',
              {},
              curves.map(each => document.importNode(each, true)),
            ),
          ]
        : null,
      h('h2', {}, 'Facts'),
      pairs(about.facts),
      h('details', {}, h('summary', {}, 'All settings'), pairs(about.settings)),
      h(
        'footer',
        {},
        state.info.credit ? h('p', {}, state.info.credit) : null,
        h('p', {}, `nearfar ${state.info.nearfar}. `, h('a', {href: '/docs'}, 'JSON API')),
      ),
    ),
  );
}

function scores({scores, titles}) {
  const metrics = Object.keys(scores[0].values).filter(name => scores.every(each => name in each.values));
  const best = scores.length - 1;
  return h(
    'div.wide',
    {tabindex: '0'},
    h(
      'table',
      {},
      h('caption', {}, 'Per cent, on classes that training never showed.'),
      h(
        'thead',
        {},
        h(
          'tr',
          {},
          h('th', {scope: 'col'}, 'Embedding'),
          metrics.map(name => h('th', {scope: 'col'}, titles[name])),
        ),
      ),
      h(
        'tbody',
        {},
        scores.map((each, i) =>
          h(
            `tr${i === best && best ? '.best' : ''}`,
            {},
            h('th', {scope: 'row'}, each.name),
            metrics.map(name => {
              const value = 100 * each.values[name];
              return h(
                'td.score',
                {vars: {'--share': `${Math.min(100, Math.max(0, value)).toFixed(1)}%`}},
                value.toFixed(1),
              );
            }),
          ),
        ),
      ),
    ),
  );
}

const pairs = rows =>
  h(
    'div.wide',
    {tabindex: '0'},
    h(
      'table.settings',
      {},
      h(
        'tbody',
        {},
        rows.map(([key, value]) => h('tr', {}, h('th', {scope: 'row'}, key), h('td', {}, value))),
      ),
    ),
  );
