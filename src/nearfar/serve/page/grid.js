// Points of the plane -1..1 in square cells, to find the nearest one, or those of a box, without looking at all.
export function grid(x, y) {
  const side = Math.max(1, Math.min(256, Math.round(Math.sqrt(x.length / 4))));
  const cell = value => Math.min(side - 1, Math.max(0, Math.floor(((value + 1) / 2) * side)));
  const starts = new Uint32Array(side * side + 1),
    order = new Uint32Array(x.length);
  const code = new Uint32Array(x.length);
  for (let i = 0; i < x.length; i++) {
    code[i] = cell(y[i]) * side + cell(x[i]);
    starts[code[i] + 1]++;
  }
  for (let c = 0; c < side * side; c++) starts[c + 1] += starts[c];
  const next = starts.slice();
  for (let i = 0; i < x.length; i++) order[next[code[i]]++] = i;

  function inside(left, top, right, bottom, visit) {
    const c0 = cell(left),
      c1 = cell(right),
      r0 = cell(top),
      r1 = cell(bottom);
    for (let row = r0; row <= r1; row++) {
      for (let at = starts[row * side + c0]; at < starts[row * side + c1 + 1]; at++) {
        const i = order[at];
        if (x[i] >= left && x[i] <= right && y[i] >= top && y[i] <= bottom) visit(i);
      }
    }
  }

  function nearest(u, v, reach) {
    let best = -1,
      least = reach * reach;
    inside(u - reach, v - reach, u + reach, v + reach, i => {
      const square = (x[i] - u) ** 2 + (y[i] - v) ** 2;
      if (square <= least) {
        least = square;
        best = i;
      }
    });
    return best;
  }
  return {inside, nearest};
}
