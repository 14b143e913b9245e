// The panel with the query of a search: inputs for a new query, or the sample that is the query.
import {thumbnail} from './cards.js';
import {debounce, h, icon} from './dom.js';
import {createPad} from './drawing_pad.js';
import {nameOf, state} from './state.js';

const UNDO = 'M9 7H15a5 5 0 0 1 0 10H8M9 7l4-4M9 7l4 4',
  BIN = 'M4 7h16M9 7V4h6v3M6 7l1 13h10l1-13',
  DICE = 'M4 4h16v16H4zM9 9h.01M15 15h.01M15 9h.01M9 15h.01M12 12h.01',
  UPLOAD = 'M12 16V4M7 9l5-5 5 5M4 16v4h16v-4';
const SPLITS = {train: 'training data', val: 'validation data', test: 'test data', added: 'added to the index'};

export const accepts = kind => state.info.accepts.includes(kind);

// Callbacks: onStrokes(strokes), onImage(file), onVector(text), onWords(text) and onClear(). The text of a vector is
// numbers separated by commas.
export function createQueryPanel({onStrokes, onImage, onVector, onWords, onClear, signal}) {
  const pad = accepts('drawing') ? createPad({label: 'Drawing area', onChange: debounce(onStrokes, 60)}) : null;
  const file = h('input', {
    type: 'file',
    accept: 'image/*',
    hidden: true,
    'aria-label': 'Image to search with',
    onchange: () => onImage(file.files[0]),
  });
  const vector = h('textarea', {
    rows: '6',
    spellcheck: 'false',
    placeholder: `${state.info.input_dim} numbers`,
    'aria-label': 'Vector to search with',
  });
  const words = h('textarea', {
    rows: '4',
    maxlength: '100000',
    placeholder: 'Type a text',
    'aria-label': 'Text to search with',
    onkeydown: event => {
      if (event.key !== 'Enter' || event.shiftKey) return;
      event.preventDefault();
      submitText();
    },
  });
  const content = h('div.query-input');
  const element = h('section.panel', {'aria-label': 'Query'}, content);

  function clearDrawing() {
    pad.clear();
    onClear();
  }
  const submitVector = () =>
    onVector(
      vector.value
        .trim()
        .split(/[\s,;]+/)
        .join(','),
    );
  function submitText() {
    if (words.value.trim()) onWords(words.value.trim());
  }
  function openRandomSample() {
    const item = state.classes[Math.floor(Math.random() * state.classes.length)];
    location.hash = `#/sample/${item.example}`;
  }

  function showInputs() {
    const parts = [];
    if (pad)
      parts.push(
        pad.canvas,
        h(
          'div.buttons',
          {},
          h('button', {type: 'button', onclick: () => pad.undo()}, icon(UNDO), 'Undo'),
          h('button', {type: 'button', onclick: clearDrawing}, icon(BIN), 'Clear'),
        ),
      );
    const searchButton = onclick => h('div.buttons', {}, h('button', {type: 'button', onclick}, 'Search'));
    if (accepts('text')) parts.push(words, searchButton(submitText));
    else if (accepts('vector')) parts.push(vector, searchButton(submitVector));
    else
      parts.push(
        h(
          `button.drop${pad ? '.small' : ''}`,
          {type: 'button', onclick: () => file.click()},
          icon(UPLOAD),
          h('span', {}, 'Drop, paste or choose an image'),
        ),
        file,
      );
    parts.push(h('button.quiet', {type: 'button', onclick: openRandomSample}, icon(DICE), 'Random sample'));
    content.replaceChildren(...parts);
  }

  function showSample(sample) {
    content.replaceChildren(
      h(
        'figure.one',
        {},
        thumbnail(sample, {size: 'large'}),
        h(
          'figcaption',
          {},
          h('a', {href: `#/class/${sample.label}`}, nameOf(sample.label)),
          h('span.soft.small', {}, `${accepts('text') ? '' : `${sample.name} · `}${SPLITS[sample.split] ?? sample.split}`),
        ),
      ),
      h(
        'div.buttons',
        {},
        h('a.button', {href: `#/map/${sample.id}`}, 'Show on map'),
        h('a.button', {href: '#/'}, pad ? 'New drawing' : 'New search'),
      ),
    );
  }

  const clearPreview = () => element.querySelector('.preview')?.remove();
  function showPreview(uri) {
    clearPreview();
    const caption = state.info.display === 'drawings' ? 'as the network sees it' : 'your image';
    element.append(
      h(
        'figure.preview',
        {},
        h('img', {src: uri, alt: 'Preview of the query'}),
        h('figcaption.soft.small', {}, caption),
      ),
    );
  }

  // An image can be dropped or pasted anywhere on the page.
  addEventListener(
    'drop',
    event => {
      if (!accepts('image')) return;
      const image = [...event.dataTransfer.files].find(item => item.type.startsWith('image/'));
      if (image) onImage(image);
    },
    {signal},
  );
  addEventListener(
    'paste',
    event => {
      const [image] = event.clipboardData.files;
      if (image && accepts('image')) onImage(image);
    },
    {signal},
  );
  addEventListener('dragenter', () => element.classList.add('dropping'), {signal});
  for (const name of ['drop', 'dragend', 'mouseout'])
    addEventListener(name, () => element.classList.remove('dropping'), {signal});

  return {
    element,
    pad,
    showInputs,
    showSample,
    showPreview,
    clearPreview,
    showText: text => {
      words.value = text;
    },
    get isEmpty() {
      return !content.children.length;
    },
  };
}
