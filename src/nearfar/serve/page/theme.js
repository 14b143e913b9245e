// Before anything is drawn: the look that was chosen here, else the system's.
(() => {
  const system = matchMedia('(prefers-color-scheme: dark)');
  const apply = () => {
    const chosen = localStorage.getItem('nearfar-theme');
    document.documentElement.dataset.theme = chosen || (system.matches ? 'dark' : 'light');
    dispatchEvent(new Event('theme'));
  };
  system.addEventListener('change', apply);
  addEventListener('choose-theme', () => {
    const next = document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark';
    // a choice that equals the system's needs no memory: the page then follows the system again
    if ((next === 'dark') === system.matches) localStorage.removeItem('nearfar-theme');
    else localStorage.setItem('nearfar-theme', next);
    apply();
  });
  apply();
})();
