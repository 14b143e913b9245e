// Elements without HTML: strings only ever become text.
const SVG = 'http://www.w3.org/2000/svg';

export function h(tag, properties = {}, ...children) {
  const [name, ...kinds] = tag.split('.');
  const element =
    name === 'svg' || name === 'path' ? document.createElementNS(SVG, name) : document.createElement(name);
  if (kinds.length) element.setAttribute('class', kinds.join(' '));
  for (const [key, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith('on')) element.addEventListener(key.slice(2), value);
    else if (key === 'data') Object.assign(element.dataset, value);
    else if (key === 'vars') for (const [each, is] of Object.entries(value)) element.style.setProperty(each, is);
    else element.setAttribute(key, value === true ? '' : value);
  }
  element.append(...children.flat(9).filter(child => child !== null && child !== undefined && child !== false));
  return element;
}

export const icon = path => h('svg', {viewBox: '0 0 24 24', 'aria-hidden': 'true'}, h('path', {d: path}));

let hiding;
export function toast(text, kind = '') {
  const box = document.getElementById('toast');
  box.textContent = text;
  box.className = `shown ${kind}`;
  clearTimeout(hiding);
  hiding = setTimeout(
    () => {
      box.className = '';
    },
    kind === 'bad' ? 8000 : 2500,
  );
}

export const debounced = (work, wait) => {
  let timer;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => work(...given), wait);
  };
};

export const busy = text => h('p.busy', {role: 'status'}, h('span.spinner'), text);
