const cell = text => '"' + text.replaceAll('"', '""') + '"';
const decided = () => [...document.querySelectorAll('article input:checked')];
const count = () => { document.getElementById('count').textContent = decided().length + ' decided'; };
document.addEventListener('change', count);
document.getElementById('bar').hidden = false;
document.getElementById('save').addEventListener('click', () => {
  const lines = ['row,path,label,suggested,decision'];
  for (const input of decided()) {
    const data = input.closest('article').dataset;
    lines.push([data.row, data.path, data.label, data.suggested, input.value].map(cell).join(','));
  }
  const link = document.createElement('a');
  link.href = URL.createObjectURL(new Blob([lines.join('\n') + '\n'], {type: 'text/csv'}));
  link.download = 'decisions.csv';
  link.click();
});
count();
