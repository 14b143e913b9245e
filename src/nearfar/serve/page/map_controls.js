// Mouse, touch, wheel and keyboard control of the map. One pointer drags the map, two pointers pinch to zoom.
const CLICK_DISTANCE = 5,
  STEP = 90;

// Callbacks: `onChange()` is called after the camera has moved, `onHover(event)` after the pointer has moved (with null
// if it is dragging or has left the map), `onCenter()` after a move by key, and `onOpen()` for a click or Enter.
// `hovered()` returns the point under the pointer.
export function addMapControls(canvas, camera, {onChange, onHover, onCenter, onOpen, hovered}) {
  const pointers = new Map();
  let distance = 0,
    pinchWidth = 0;

  function zoomAt(factor, clientX, clientY) {
    const box = canvas.getBoundingClientRect();
    camera.zoom(factor, (clientX - box.left) * camera.ratio, (clientY - box.top) * camera.ratio);
  }

  canvas.addEventListener('pointerdown', event => {
    canvas.setPointerCapture(event.pointerId);
    pointers.set(event.pointerId, [event.clientX, event.clientY]);
    if (pointers.size === 1) distance = 0;
    pinchWidth = 0;
  });
  canvas.addEventListener('pointermove', event => {
    const previous = pointers.get(event.pointerId);
    if (!previous) {
      onHover(event);
      return;
    }
    const [dx, dy] = [event.clientX - previous[0], event.clientY - previous[1]];
    pointers.set(event.pointerId, [event.clientX, event.clientY]);
    if (pointers.size === 1) {
      distance += Math.hypot(dx, dy);
      if (distance < CLICK_DISTANCE) return;
      camera.moveByPixels(-dx * camera.ratio, -dy * camera.ratio);
      onHover(null);
      onChange();
    } else if (pointers.size === 2) {
      distance = Infinity;
      const [a, b] = [...pointers.values()],
        width = Math.hypot(a[0] - b[0], a[1] - b[1]);
      camera.moveByPixels((-dx * camera.ratio) / 2, (-dy * camera.ratio) / 2);
      if (pinchWidth) zoomAt(width / pinchWidth, (a[0] + b[0]) / 2, (a[1] + b[1]) / 2);
      pinchWidth = width;
      onChange();
    }
  });
  const release = event => {
    const wasDown = pointers.delete(event.pointerId);
    pinchWidth = 0;
    if (!wasDown || event.type !== 'pointerup' || distance >= CLICK_DISTANCE) return;
    const previous = hovered();
    onHover(event);
    // A finger cannot hover, so the first tap shows a sample and the second tap opens it.
    if (event.pointerType !== 'touch' || previous === hovered()) onOpen();
  };
  canvas.addEventListener('pointerup', release);
  canvas.addEventListener('pointercancel', release);
  canvas.addEventListener('pointerleave', () => {
    if (!pointers.size) onHover(null);
  });
  canvas.addEventListener(
    'wheel',
    event => {
      event.preventDefault();
      zoomAt(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0016)), event.clientX, event.clientY);
      onChange();
      onHover(event);
    },
    {passive: false},
  );

  const move = (dx, dy) => () => camera.moveByPixels(dx * STEP * camera.ratio, dy * STEP * camera.ratio);
  const KEYS = {
    ArrowLeft: move(-1, 0),
    ArrowRight: move(1, 0),
    ArrowUp: move(0, -1),
    ArrowDown: move(0, 1),
    '+': () => camera.zoom(1.4),
    '=': () => camera.zoom(1.4),
    '-': () => camera.zoom(1 / 1.4),
    0: () => camera.showAll(),
  };
  canvas.addEventListener('keydown', event => {
    if (event.key === 'Enter') onOpen();
    if (!(event.key in KEYS)) return;
    KEYS[event.key]();
    event.preventDefault();
    onChange();
    onCenter();
  });
}
