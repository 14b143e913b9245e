// Creates elements without parsing HTML: strings become text or attribute values, never markup.
const SVG = 'http://www.w3.org/2000/svg';

// h('a.button', {href: '#/'}, 'Back') creates <a class="button" href="#/">Back</a>.
// Properties: names that start with `on` add event listeners, `data` sets data attributes, `vars` sets CSS variables,
// and all others set attributes.
export function h(tag, properties = {}, ...children) {
  const [name, ...classNames] = tag.split('.');
  const element =
    name === 'svg' || name === 'path' ? document.createElementNS(SVG, name) : document.createElement(name);
  if (classNames.length) element.setAttribute('class', classNames.join(' '));
  for (const [key, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith('on')) element.addEventListener(key.slice(2), value);
    else if (key === 'data') Object.assign(element.dataset, value);
    else if (key === 'vars')
      for (const [variable, setting] of Object.entries(value)) element.style.setProperty(variable, setting);
    else element.setAttribute(key, value === true ? '' : value);
  }
  element.append(...children.flat(9).filter(child => child !== null && child !== undefined && child !== false));
  return element;
}

export const icon = path => h('svg', {viewBox: '0 0 24 24', 'aria-hidden': 'true'}, h('path', {d: path}));
export const busy = text => h('p.busy', {role: 'status'}, h('span.spinner'), text);
export const problem = text => h('p.problem', {role: 'alert'}, text);
export const optionsOf = (id, names) =>
  h(
    'datalist',
    {id},
    names.map(name => h('option', {value: name})),
  );
export const formatCount = count => count.toLocaleString('en');

let toastTimer;
export function showToast(text, kind = '') {
  const box = document.getElementById('toast');
  box.textContent = text;
  box.className = `shown ${kind}`;
  clearTimeout(toastTimer);
  toastTimer = setTimeout(
    () => {
      box.className = '';
    },
    kind === 'bad' ? 8000 : 2500,
  );
}

export const debounce = (work, milliseconds) => {
  let timer;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => work(...values), milliseconds);
  };
};

// Calls `work` whenever an element is about to scroll into view.
export function onVisible(element, work, signal) {
  const observer = new IntersectionObserver(
    entries => {
      if (entries.some(entry => entry.isIntersecting)) work();
    },
    {rootMargin: '400px'},
  );
  observer.observe(element);
  signal.addEventListener('abort', () => observer.disconnect());
}
