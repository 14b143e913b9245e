// Scores, decisions, training curves and settings of the run.
import {getFigures, getJson} from './api.js';
import {h} from './dom.js';
import {state} from './state.js';

export async function showRun(view, route, signal) {
  const [run, curves, diagrams] = await Promise.all([
    getJson('/api/run', signal),
    getFigures('/api/run/curves'),
    getFigures('/api/run/calibration'),
  ]);
  signal.throwIfAborted();
  view.append(
    h(
      'div.column',
      {},
      h('h1', {}, state.info.title),
      run.scores.length
        ? [h('h2', {}, 'Scores'), scoreTable(run)]
        : h('p', {}, 'This run has no test scores: its training is not finished, or its data has no test split.'),
      run.calibration ? calibrationSection(run.calibration, diagrams) : null,
      curves.length ? [h('h2', {}, 'Training'), figureRow(curves)] : null,
      h('h2', {}, 'Summary'),
      settingsTable(run.facts),
      h('details', {}, h('summary', {}, 'All settings'), settingsTable(run.settings)),
      h(
        'footer',
        {},
        state.info.credit ? h('p', {}, state.info.credit) : null,
        h('p', {}, `nearfar ${state.info.nearfar}. `, h('a', {href: '/docs'}, 'JSON API')),
      ),
    ),
  );
}

const figureRow = figures =>
  h(
    'div.curves',
    {},
    figures.map(figure => document.importNode(figure, true)),
  );

function calibrationSection({facts, header, thresholds, warning}, diagrams) {
  return [
    h('h2', {}, 'Decisions'),
    warning ? h('p.problem', {}, `${warning}.`) : null,
    figureRow(diagrams),
    settingsTable(facts),
    h(
      'div.wide',
      {tabindex: '0'},
      h(
        'table.thresholds',
        {},
        h('caption', {}, 'Two samples are accepted as the same class if their distance is at most the threshold.'),
        h(
          'thead',
          {},
          h(
            'tr',
            {},
            header.map(name => h('th', {scope: 'col'}, name)),
          ),
        ),
        h(
          'tbody',
          {},
          thresholds.map(([rate, ...cells]) =>
            h(
              'tr',
              {},
              h('th', {scope: 'row'}, rate),
              cells.map(cell => h('td', {}, cell)),
            ),
          ),
        ),
      ),
    ),
  ];
}

function scoreTable({scores, titles}) {
  const metrics = Object.keys(scores[0].values).filter(name => scores.every(row => name in row.values));
  const last = scores.length - 1;
  return h(
    'div.wide',
    {tabindex: '0'},
    h(
      'table',
      {},
      h('caption', {}, `Values in percent, on the test split.${last ? ' Bold: the trained network.' : ''}`),
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
        scores.map((row, i) =>
          h(
            `tr${i === last && last ? '.best' : ''}`,
            {},
            h('th', {scope: 'row'}, row.name),
            metrics.map(name => scoreCell(100 * row.values[name])),
          ),
        ),
      ),
    ),
  );
}

const scoreCell = percent =>
  h(
    'td.score',
    {vars: {'--share': `${Math.min(100, Math.max(0, percent)).toFixed(1)}%`}},
    percent.toFixed(1),
  );

const settingsTable = rows =>
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
