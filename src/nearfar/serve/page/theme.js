// Sets the color scheme before anything is drawn: the one that the user chose on this page, or else that of the system.
(() => {
  const system = matchMedia('(prefers-color-scheme: dark)');
  const apply = () => {
    const chosen = localStorage.getItem('nearfar-theme');
    document.documentElement.dataset.theme = chosen || (system.matches ? 'dark' : 'light');
    dispatchEvent(new Event('theme'));
  };
  system.addEventListener('change', apply);
  addEventListener('toggle-theme', () => {
    const next = document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark';
    // If the choice equals the color scheme of the system, it is not stored, so that the page follows the system again.
    if ((next === 'dark') === system.matches) localStorage.removeItem('nearfar-theme');
    else localStorage.setItem('nearfar-theme', next);
    apply();
  });
  apply();
})();
