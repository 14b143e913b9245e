// Shows samples whose label may be wrong, one at a time. The user decides with keys or buttons. The page shows a
// decision only after the server has saved it.
import {getJson, getWhenReady, putJson} from './api.js';
import {auditTabs} from './audit_tabs.js';
import {thumbnail} from './cards.js';
import {busy, formatCount, h, optionsOf, showToast} from './dom.js';
import {nameOf, state} from './state.js';
import {DECISIONS, suspectView} from './suspect_view.js';

const PAGE_SIZE = 20;

export async function showAudit(view, route, signal) {
  const wait = busy('Auditing all labels. This can take minutes the first time; the result is cached.');
  view.append(wait);
  const open = await getWhenReady('/api/audit?state=open&limit=1', signal);
  wait.remove();
  const pages = new Map(),
    counts = new Map(Object.entries(open.decided)),
    undoStack = [];
  let total = 0,
    rank = 0,
    saving = null,
    focusRelabel = () => {};

  const progress = h('div.progress', {'aria-live': 'polite'}),
    queue = h('div.queue', {role: 'listbox', 'aria-label': 'Suspects'}),
    article = h('article.suspect');
  view.append(
    h(
      'div.audit',
      {},
      h(
        'div.line',
        {},
        h('h1', {}, 'Labels to check'),
        h(
          'div.tools',
          {},
          auditTabs('audit'),
          h('a.button', {href: '/api/audit/decisions.csv', download: 'decisions.csv'}, 'Download decisions.csv'),
        ),
      ),
      progress,
      queue,
      article,
    ),
    optionsOf(
      'audit-names',
      state.classes.filter(item => item.split !== 'added').map(item => item.name),
    ),
  );

  async function loadPage(position) {
    const offset = Math.floor(position / PAGE_SIZE) * PAGE_SIZE;
    if (!pages.has(offset)) {
      pages.set(offset, getJson(`/api/audit?offset=${offset}&limit=${PAGE_SIZE}`, signal));
      pages.get(offset).catch(() => pages.delete(offset));
    }
    const page = await pages.get(offset);
    total = page.total;
    return page;
  }
  const loadSuspect = async position => (await loadPage(position)).suspects[position % PAGE_SIZE];

  function showProgress() {
    const parts = ['relabel', 'remove', 'keep'].map(decision => [decision, counts.get(decision) ?? 0]);
    const decided = parts.reduce((sum, [, count]) => sum + count, 0);
    const details = parts.filter(([, count]) => count).map(([decision, count]) => `${count} ${DECISIONS[decision]}`);
    progress.replaceChildren(
      h(
        'span',
        {},
        h('strong', {}, formatCount(open.suspected)),
        ` of ${formatCount(total)} labels are probably wrong`,
      ),
      h(
        'span',
        {},
        h('strong', {'data-count': decided}, `${formatCount(decided)} decided`),
        decided ? `: ${details.join(', ')}` : '',
      ),
    );
  }

  async function showQueue() {
    const {suspects, offset} = await loadPage(rank);
    queue.replaceChildren(
      ...suspects.map((suspect, i) => {
        const isCurrent = offset + i === rank;
        const status = suspect.decision ? `, ${DECISIONS[suspect.decision]}` : '';
        return h(
          `a.mini.${suspect.decision || 'open'}`,
          {
            href: `#/audit/${offset + i + 1}`,
            role: 'option',
            'aria-selected': String(isCurrent),
            'aria-label': `${offset + i + 1}: ${nameOf(suspect.sample.label)}${status}`,
            tabindex: isCurrent ? '0' : '-1',
          },
          thumbnail(suspect.sample, {size: 'small', alt: ''}),
        );
      }),
    );
    const current = queue.querySelector('[aria-selected=true]');
    if (current) queue.scrollLeft = current.offsetLeft - queue.clientWidth / 2 + current.clientWidth / 2;
  }

  async function showSuspect() {
    const position = rank,
      suspect = await loadSuspect(position);
    if (signal.aborted || position !== rank) return;
    if (!suspect) {
      article.replaceChildren(h('p', {}, 'There are no samples to audit.'));
      return;
    }
    const shown = suspectView(suspect, rank, total, decide);
    focusRelabel = shown.focusRelabel;
    article.dataset.id = suspect.sample.id;
    article.replaceChildren(...shown.content);
    showProgress();
    await showQueue();
    const nextPage = rank + PAGE_SIZE - (rank % PAGE_SIZE);
    if (nextPage < total) loadPage(nextPage);
  }

  // Saves a decision. Returns the previous decision about the suspect, or null if the new one could not be saved.
  function save(position, decision, label) {
    saving = (async () => {
      try {
        const suspect = await loadSuspect(position);
        const previous = {decision: suspect.decision, label: suspect.new_label, rank: position};
        await putJson(`/api/audit/${suspect.sample.id}`, {decision, label});
        if (suspect.decision) counts.set(suspect.decision, counts.get(suspect.decision) - 1);
        if (decision) counts.set(decision, (counts.get(decision) ?? 0) + 1);
        suspect.decision = decision;
        suspect.new_label = label;
        const result = decision === 'relabel' ? `relabeled as ${nameOf(label)}` : DECISIONS[decision];
        showToast(decision ? `Saved: ${result}` : 'Decision undone');
        return previous;
      } catch (error) {
        showToast(`Not saved: ${error.message}`, 'bad');
        return null;
      } finally {
        saving = null;
      }
    })();
    return saving;
  }

  async function decide(decision, label = null) {
    // Ignore a decision while another one is being saved: the user may intend it for the next suspect, which is not
    // shown yet.
    if (saving) return;
    const previous = await save(rank, decision, label);
    if (!previous) return;
    undoStack.push(previous);
    await moveTo(previous.rank + 1);
  }

  async function undo() {
    while (saving) await saving;
    const last = undoStack.pop();
    if (!last) {
      showToast('Nothing to undo');
      return;
    }
    if (await save(last.rank, last.decision, last.label)) await moveTo(last.rank);
    else undoStack.push(last);
  }

  async function moveTo(position) {
    rank = Math.min(Math.max(0, position), Math.max(0, total - 1));
    // The audit has only one entry in the browser history, not one per suspect.
    history.replaceState(null, '', `#/audit/${rank + 1}`);
    await showSuspect();
  }

  const click = selector => () => article.querySelector(selector)?.click();
  const SHORTCUTS = {
    a: click('.accept'),
    r: click('.keep'),
    x: click('.remove'),
    Delete: click('.remove'),
    u: undo,
    l: () => focusRelabel(),
    ArrowRight: () => moveTo(rank + 1),
    j: () => moveTo(rank + 1),
    ArrowLeft: () => moveTo(rank - 1),
    k: () => moveTo(rank - 1),
  };
  addEventListener(
    'keydown',
    event => {
      if (event.target.matches('input, textarea, select') || event.ctrlKey || event.metaKey || event.altKey) {
        if (event.key === 'Escape') event.target.blur();
        return;
      }
      const action = SHORTCUTS[event.key.length === 1 ? event.key.toLowerCase() : event.key];
      if (!action || (event.repeat && !event.key.startsWith('Arrow'))) return;
      event.preventDefault();
      action();
    },
    {signal},
  );

  const number = Number(route.rest[0]);
  rank = number >= 1 ? number - 1 : Math.max(0, (open.suspects[0]?.rank ?? 1) - 1);
  await loadPage(rank);
  await moveTo(rank);
  return {
    onRoute: next => {
      if (Number(next.rest[0]) >= 1) moveTo(Number(next.rest[0]) - 1);
      return true;
    },
  };
}
