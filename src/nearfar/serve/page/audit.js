// Labels that may be wrong, one at a time, decided by keys or buttons; each decision is on disk when it shows.
import {busy, h, toast} from './dom.js';
import {get, patient, put} from './api.js';
import {nameOf, shot} from './cards.js';
import {labelOf, state} from './state.js';

const PART = 20,
  WORDS = {keep: 'kept', relabel: 'relabeled', remove: 'removed'};

export async function audit(view, here, signal) {
  const wait = busy('Judging every label: once, it is kept. This can take minutes');
  view.append(wait);
  const first = await patient('/api/audit?state=open&limit=1', signal);
  wait.remove();
  const known = new Map(),
    counts = new Map(Object.entries(first.decided)),
    history = [];
  let total = 0,
    at = 0,
    sending = null;

  const bar = h('div.progress', {'aria-live': 'polite'}),
    strip = h('div.queue', {role: 'listbox', 'aria-label': 'Suspects'}),
    stage = h('article.suspect');
  const names = h(
    'datalist',
    {id: 'audit-names'},
    state.classes.map(each => h('option', {value: each.name})),
  );
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
          h('a.button', {href: '/api/audit/decisions.csv', download: 'decisions.csv'}, 'Download decisions.csv'),
        ),
      ),
      bar,
      strip,
      stage,
    ),
    names,
  );

  async function part(rank) {
    const offset = Math.floor(rank / PART) * PART;
    if (!known.has(offset)) {
      known.set(offset, get(`/api/audit?offset=${offset}&limit=${PART}`, signal));
      known.get(offset).catch(() => known.delete(offset));
    }
    const found = await known.get(offset);
    total = found.total;
    return found;
  }
  const suspect = async rank => (await part(rank)).suspects[rank % PART];

  function told() {
    const count = ['relabel', 'remove', 'keep'].map(kind => [kind, counts.get(kind) ?? 0]);
    const all = count.reduce((sum, [, each]) => sum + each, 0);
    bar.replaceChildren(
      h(
        'span',
        {},
        h('strong', {}, `${first.doubted.toLocaleString('en')}`),
        ` of ${total.toLocaleString('en')} labels are doubted by their neighbors and class`,
      ),
      h(
        'span',
        {},
        h('strong', {'data-count': all}, `${all.toLocaleString('en')} decided`),
        all
          ? `: ${count
              .filter(each => each[1])
              .map(([kind, each]) => `${each} ${WORDS[kind]}`)
              .join(', ')}`
          : '',
      ),
    );
  }

  function choice(each) {
    if (!each.decision) return null;
    return h(
      `span.state.${each.decision}`,
      {},
      each.decision === 'relabel' ? `relabeled: ${nameOf(each.new_label)}` : WORDS[each.decision],
    );
  }

  async function queue() {
    const {suspects, offset} = await part(at);
    strip.replaceChildren(
      ...suspects.map((each, i) =>
        h(
          `a.mini.${each.decision || 'open'}`,
          {
            href: `#/audit/${offset + i + 1}`,
            role: 'option',
            'aria-selected': String(offset + i === at),
            'aria-label': `${offset + i + 1}: ${nameOf(each.sample.label)}${each.decision ? `, ${WORDS[each.decision]}` : ''}`,
            tabindex: offset + i === at ? '0' : '-1',
          },
          shot(each.sample, {size: 'small', alt: ''}),
        ),
      ),
    );
    const here = strip.querySelector('[aria-selected=true]');
    if (here) strip.scrollLeft = here.offsetLeft - strip.clientWidth / 2 + here.clientWidth / 2;
  }

  const strips = (title, samples, own, other) =>
    h(
      'section',
      {},
      h('h3', {}, title),
      h(
        'ul.strip',
        {},
        samples.map(each =>
          h(
            `li.${each.label === own ? 'own' : each.label === other ? 'other' : 'third'}`,
            {},
            h(
              'a',
              {href: `#/sample/${each.id}`, title: each.name},
              shot(each, {alt: ''}),
              h('span.name', {}, nameOf(each.label)),
            ),
          ),
        ),
      ),
    );

  const key = letter => h('kbd', {}, letter);

  async function show() {
    const rank = at,
      each = await suspect(rank);
    if (signal.aborted || rank !== at) return;
    if (!each) {
      stage.replaceChildren(h('p', {}, 'There is nothing to audit.'));
      return;
    }
    const own = each.sample.label,
      other = each.suggested === own ? each.rival : each.suggested;
    const to = h('input', {
      type: 'search',
      list: 'audit-names',
      placeholder: 'another class',
      'aria-label': 'Relabel as',
      autocomplete: 'off',
    });
    const form = h(
      'form.relabel',
      {
        onsubmit: event => {
          event.preventDefault();
          const label = labelOf(to.value);
          if (label === undefined) toast(`There is no class ${to.value}`, 'bad');
          else if (label === own) decide('keep');
          else decide('relabel', label);
        },
      },
      h('label', {}, key('L'), ' ', to),
      h('button', {}, 'Relabel'),
    );
    stage.dataset.id = each.sample.id;
    stage.replaceChildren(
      h(
        'div.left',
        {},
        h('figure.one', {}, shot(each.sample, {size: 'large'})),
        h('p.soft.small', {}, `#${at + 1} of ${total.toLocaleString('en')} · ${each.sample.name}`),
      ),
      h(
        'div.right-side',
        {},
        h(
          'h2',
          {},
          h('span.own', {}, nameOf(own)),
          each.suggested === own ? h('span.soft', {}, ' — or ') : h('span.soft', {}, ' → '),
          h('span.other', {}, nameOf(other)),
          h('span.soft', {}, '?'),
        ),
        choice(each),
        h('p.why', {}, each.reason),
        h(
          'div.choices',
          {},
          h(
            'button.accept',
            {type: 'button', onclick: () => decide('relabel', other)},
            key('A'),
            ` It is ${nameOf(other)}`,
          ),
          h('button.keep', {type: 'button', onclick: () => decide('keep')}, key('R'), ` It is ${nameOf(own)}`),
          h('button.remove', {type: 'button', onclick: () => decide('remove')}, key('X'), ' Neither: remove'),
          form,
        ),
        h(
          'p.keys.soft.small',
          {},
          key('A'),
          ' accept ',
          key('R'),
          ' reject, keep the label ',
          key('L'),
          ' relabel ',
          key('X'),
          ' remove ',
          key('U'),
          ' undo ',
          key('←'),
          ' ',
          key('→'),
          ' move',
        ),
      ),
      h(
        'div.evidence',
        {},
        strips('Its nearest neighbors', each.neighbors, own, other),
        strips(`The rest of ${nameOf(own)}`, each.mates, own, other),
      ),
    );
    stage.querySelector('.relabel').open = () => {
      to.focus();
      to.select();
    };
    told();
    await queue();
    if (at + PART - (at % PART) < total) part(at + PART - (at % PART));
  }

  function save(rank, decision, label) {
    sending = (async () => {
      try {
        const each = await suspect(rank);
        const before = {decision: each.decision, label: each.new_label, rank};
        await put(`/api/audit/${each.sample.id}`, {decision, label});
        if (each.decision) counts.set(each.decision, counts.get(each.decision) - 1);
        if (decision) counts.set(decision, (counts.get(decision) ?? 0) + 1);
        each.decision = decision;
        each.new_label = label;
        toast(
          decision
            ? `Saved: ${decision === 'relabel' ? `relabeled as ${nameOf(label)}` : WORDS[decision]}`
            : 'Taken back',
        );
        return before;
      } catch (error) {
        toast(`Not saved: ${error.message}`, 'bad');
        return null;
      } finally {
        sending = null;
      }
    })();
    return sending;
  }

  async function decide(decision, label = null) {
    // a second choice before the first is on disk would be for a suspect that nobody has seen
    if (sending) return;
    const before = await save(at, decision, label);
    if (!before) return;
    history.push(before);
    await move(before.rank + 1);
  }

  async function undo() {
    while (sending) await sending;
    const last = history.pop();
    if (!last) {
      toast('Nothing to undo');
      return;
    }
    if (await save(last.rank, last.decision, last.label)) await move(last.rank);
    else history.push(last);
  }

  async function move(rank) {
    at = Math.min(Math.max(0, rank), Math.max(0, total - 1));
    // one entry of the history for the audit, not one for each suspect
    window.history.replaceState(null, '', `#/audit/${at + 1}`);
    await show();
  }

  addEventListener(
    'keydown',
    event => {
      if (event.target.matches('input, textarea, select') || event.ctrlKey || event.metaKey || event.altKey) {
        if (event.key === 'Escape') event.target.blur();
        return;
      }
      const press = selector => () => stage.querySelector(selector)?.click();
      const work = {
        a: press('.accept'),
        r: press('.keep'),
        x: press('.remove'),
        Delete: press('.remove'),
        u: undo,
        l: () => stage.querySelector('.relabel')?.open(),
        ArrowRight: () => move(at + 1),
        j: () => move(at + 1),
        ArrowLeft: () => move(at - 1),
        k: () => move(at - 1),
      }[event.key.length === 1 ? event.key.toLowerCase() : event.key];
      if (!work || (event.repeat && !event.key.startsWith('Arrow'))) return;
      event.preventDefault();
      work();
    },
    {signal},
  );

  const wanted = Number(here.rest[0]);
  at = wanted >= 1 ? wanted - 1 : Math.max(0, (first.suspects[0]?.rank ?? 1) - 1);
  await part(at);
  await move(at);
  return {
    moved: next => {
      if (Number(next.rest[0]) >= 1) move(Number(next.rest[0]) - 1);
      return true;
    },
  };
}
