// The page from top to bottom.

function buildHeader() {
  const { name, planner, num_equations: num, num_outputs: outputs, num_signatures: signatures } = data.function;
  byId('name').textContent = name;
  const { incrax, jax, python, devices } = data.machine;
  byId('about').textContent = [many(num, 'equation'), many(data.leaves.length, 'input'), many(outputs, 'output'),
    ...(signatures > 1 ? [`one of ${signatures} signatures`] : []), planner, `incrax ${incrax}, JAX ${jax}, Python ${python}`, devices].join(' · ');
  const stats = data.stats, memory = data.memory;
  const perCall = stats.calls && num ? (stats.ran + stats.filled) / (stats.calls * num) : null;
  const best = d3.min(data.plans.filter(plan => plan.is_final).flatMap(plan => plan.candidates.map(c => c.seconds)));
  const figures = [
    ['calls', exactly(stats.calls), `${exactly(stats.unchanged)} with nothing changed`],
    ['equations run per call', perCall === null ? 'none yet' : share(perCall, 1), 'of all, fills included'],
    ['whole function', duration(data.whole.seconds), data.whole.is_measured ? 'measured' : 'estimated'],
    ...(best ? [['fastest change', duration(best), 'expected or measured']] : []),
    ['saved', byteCount(memory.saved_bytes), `of ${byteCount(memory.budget_bytes)} allowed`],
    ['programs compiled', exactly(stats.compiles), `${many(stats.traces, 'trace')}, ${many(stats.evicted, 'eviction')}`],
  ];
  byId('figures').append(...figures.map(([term, value, note]) => make('div', {}, make('dt', {}, term), make('dd', {}, value, make('small', {}, note)))));
}

function buildTheme() {
  for (const radio of document.querySelectorAll('input[name="theme"]')) {
    radio.addEventListener('change', () => {
      if (radio.value === 'auto') delete document.documentElement.dataset.theme;
      else document.documentElement.dataset.theme = radio.value;
    });
  }
}

/** Links inside the page: a frame without an address of its own cannot follow them by itself. */
function buildLinks() {
  for (const link of document.querySelectorAll('nav a, .skip')) {
    link.addEventListener('click', event => {
      event.preventDefault();
      const target = byId(link.getAttribute('href').slice(1));
      target.focus({ preventScroll: true });
      target.scrollIntoView();
    });
  }
}

/** The change shown first: the last call's, or that of the first input. */
function firstChange() {
  const last = data.last === null ? 0n : BigInt(data.last) & full;
  if (last) return last;
  return data.leaves.length ? leafMask(data.leaves[0]) : 0n;
}

buildTheme();
buildLinks();
buildHeader();
buildInputs();
buildMap();
buildCharts();
buildTables();
choose({ change: firstChange() });
document.documentElement.dataset.ready = 'yes';
