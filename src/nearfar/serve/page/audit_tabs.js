// Links between the three lists of the audit.
import {h} from './dom.js';

const LISTS = {audit: 'Labels', duplicates: 'Near duplicates', outliers: 'Outliers'};

export const auditTabs = current =>
  h(
    'nav.lists',
    {'aria-label': 'Lists of the audit'},
    Object.entries(LISTS).map(([name, title]) =>
      h('a.button', {href: `#/${name}`, 'aria-current': name === current ? 'page' : null}, title),
    ),
  );
