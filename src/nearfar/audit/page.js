const bar = document.getElementById('bar');
const key = 'nearfar audit ' + bar.dataset.key;
const classes = new Set([...document.querySelectorAll('#classes option')].map(option => option.value));
const cell = text => '"' + text.replaceAll('"', '""') + '"';

// Returns the decision on a sample as [decision, label]. Returns null if nothing was decided yet, or if the new label
// that was typed is not a class.
function decision(article) {
  const value = article.querySelector('input[type=radio]:checked')?.value;
  const label = article.querySelector('.new').value;
  if (!value || (value === 'other' && !classes.has(label))) return null;
  return value === 'other' ? ['relabel', label] : [value, article.dataset.suggested];
}

const articles = [...document.querySelectorAll('article')];
const decided = () => articles.filter(article => decision(article));

function show() {
  for (const article of articles) {
    const isOther = article.querySelector('[value=other]').checked, input = article.querySelector('.new');
    input.setCustomValidity(isOther && !classes.has(input.value) ? 'Choose one of the classes' : '');
  }
  document.getElementById('count').textContent = decided().length + ' decided';
}

// Saves the decisions in the browser's local storage, so that a reload does not lose them. If the browser forbids local
// storage, a message asks the user to save the file.
function keep() {
  const state = {};
  for (const article of articles) {
    const radio = article.querySelector('input[type=radio]:checked');
    if (radio) state[article.dataset.row] = [radio.value, article.querySelector('.new').value];
  }
  try {
    localStorage.setItem(key, JSON.stringify(state));
  } catch {
    document.getElementById('kept').textContent = 'This browser forgets your decisions when you reload the page: save decisions.csv.';
  }
}

function restore() {
  let state = {};
  try {
    state = JSON.parse(localStorage.getItem(key) ?? '{}');
  } catch {
    return;
  }
  for (const article of articles) {
    const [value, label] = state[article.dataset.row] ?? [];
    const radio = [...article.querySelectorAll('input[type=radio]')].find(input => input.value === value);
    if (radio) radio.checked = true;
    article.querySelector('.new').value = label ?? '';
  }
}

document.addEventListener('change', () => { show(); keep(); });
document.addEventListener('input', event => {
  if (event.target.classList.contains('new') && event.target.value)
    event.target.closest('label').querySelector('input[type=radio]').checked = true;
  show();
  keep();
});
for (const label of document.querySelectorAll('.any')) label.hidden = false;
bar.hidden = false;
document.getElementById('save').addEventListener('click', () => {
  const lines = ['row,path,label,suggested,decision'];
  for (const article of decided()) {
    const {row, path, label} = article.dataset, [value, suggested] = decision(article);
    lines.push([row, path, label, suggested, value].map(cell).join(','));
  }
  const link = document.createElement('a');
  link.href = URL.createObjectURL(new Blob([lines.join('\n') + '\n'], {type: 'text/csv'}));
  link.download = 'decisions.csv';
  link.click();
});
restore();
show();
