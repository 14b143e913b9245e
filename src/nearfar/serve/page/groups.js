// Two lists of the audit: groups of near duplicates, and outliers. Each sample can be removed from the data; the page
// shows this only after the server has saved it.
import {getJson, getWhenReady, putJson} from './api.js';
import {auditTabs} from './audit_tabs.js';
import {card} from './cards.js';
import {busy, formatCount, h, onVisible, showToast} from './dom.js';
import {DECISIONS} from './suspect_view.js';

const GROUPS = 20,
  SAMPLES = 60;
const WARNING = 'A test sample with a near duplicate in the training split makes scores too good.';
const plural = (count, one, many) => `${formatCount(count)} ${count === 1 ? one : many}`;

export const showDuplicates = (view, route, signal) =>
  showList(view, signal, {
    name: 'duplicates',
    title: 'Near duplicates',
    size: GROUPS,
    list: h('div.groups'),
    items: page => page.groups.map(groupSection),
    describe: page =>
      page.total
        ? `${plural(page.total, 'group', 'groups')} of samples that are almost the same, ${formatCount(page.across_splits)} of them across splits. ${page.across_splits ? WARNING : ''}`
        : 'There are no near duplicates.',
  });

export const showOutliers = (view, route, signal) =>
  showList(view, signal, {
    name: 'outliers',
    title: 'Outliers',
    size: SAMPLES,
    list: h('ol.cards'),
    items: page => page.samples.map(removableCard),
    describe: page =>
      page.total
        ? `${plural(page.total, 'sample is', 'samples are')} far from all others. Such samples may be broken, or may not belong to the data. The farthest come first.`
        : 'There are no outliers.',
  });

async function showList(view, signal, {name, title, size, list, items, describe}) {
  const path = `/api/audit/${name}`,
    wait = busy('Searching all samples. This can take minutes the first time.');
  view.append(wait);
  const first = await getWhenReady(`${path}?limit=${size}`, signal);
  wait.remove();
  let offset = 0,
    isLoading = false;
  const more = h('div.center', {}, h('button.quiet', {type: 'button', onclick: loadMore}, 'More'));
  view.append(
    h(
      'div.audit',
      {},
      h('div.line', {}, h('h1', {}, title), h('div.tools', {}, auditTabs(name))),
      h('p.soft', {}, describe(first)),
      list,
      more,
    ),
  );
  function show(page) {
    offset += size;
    list.append(...items(page));
    more.hidden = offset >= page.total;
  }
  async function loadMore() {
    if (isLoading) return;
    isLoading = true;
    try {
      show(await getJson(`${path}?offset=${offset}&limit=${size}`, signal));
    } finally {
      isLoading = false;
    }
  }
  show(first);
  onVisible(more, () => more.hidden || loadMore(), signal);
}

function groupSection({samples, count, distance, across_splits, several_labels}) {
  const hidden = count - samples.length;
  return h(
    'section.group',
    {'aria-label': `${count} near duplicates`},
    h(
      'h2',
      {},
      across_splits ? h('span.mark', {}, 'across splits') : null,
      several_labels ? h('span.mark', {}, 'different labels') : null,
      h('span.soft.small', {}, `${count} samples, smallest distance ${distance.toFixed(4)}`),
    ),
    h('ol.cards', {}, samples.map(removableCard)),
    hidden ? h('p.soft.small', {}, `${formatCount(hidden)} more samples are not shown.`) : null,
  );
}

function removableCard(sample) {
  let decision = sample.decision;
  const item = card(sample, {mark: sample.split}),
    button = h('button.remove-one', {type: 'button', onclick: toggle});
  function update() {
    const isRemoved = decision === 'remove';
    item.classList.toggle('removed', isRemoved);
    button.textContent = isRemoved ? 'Undo' : 'Remove';
    button.setAttribute('aria-label', `${isRemoved ? 'Undo the removal of' : 'Remove'} ${sample.name}`);
  }
  async function toggle() {
    const next = decision === 'remove' ? '' : 'remove';
    button.disabled = true;
    try {
      await putJson(`/api/audit/${sample.id}`, {decision: next, label: null});
      decision = next;
      showToast(next ? `Saved: ${DECISIONS[next]}` : 'Decision undone');
    } catch (error) {
      showToast(`Not saved: ${error.message}`, 'bad');
    }
    button.disabled = false;
    update();
  }
  item.append(button);
  update();
  return item;
}
