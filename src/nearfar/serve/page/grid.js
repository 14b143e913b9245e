// Sorts points in -1..1 into square cells, to find the points in a box or the nearest point without visiting all of
// them.
export function createGrid(x, y) {
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

  function visitBox(left, top, right, bottom, visit) {
    const firstColumn = cell(left),
      lastColumn = cell(right),
      firstRow = cell(top),
      lastRow = cell(bottom);
    for (let row = firstRow; row <= lastRow; row++) {
      for (let at = starts[row * side + firstColumn]; at < starts[row * side + lastColumn + 1]; at++) {
        const i = order[at];
        if (x[i] >= left && x[i] <= right && y[i] >= top && y[i] <= bottom) visit(i);
      }
    }
  }

  // Returns the index of the point nearest to (u, v), or -1 if there is none within the radius.
  function nearest(u, v, radius) {
    let best = -1,
      smallest = radius * radius;
    visitBox(u - radius, v - radius, u + radius, v + radius, i => {
      const square = (x[i] - u) ** 2 + (y[i] - v) ** 2;
      if (square <= smallest) {
        smallest = square;
        best = i;
      }
    });
    return best;
  }
  return {visitBox, nearest};
}
