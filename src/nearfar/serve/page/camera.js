// The visible part of the map: its center, its scale, and the size of the canvas in pixels.
const MAX_ZOOM = 400,
  MIN_ZOOM = 0.6,
  // The map spans -1..1. The center of the view can move only slightly beyond it.
  MAX_CENTER = 1.1;

export function createCamera(x, y) {
  const largest = values => values.reduce((most, value) => Math.max(most, Math.abs(value)), 0.05);
  const extent = [largest(x), largest(y)];
  const clamp = value => Math.min(MAX_CENTER, Math.max(-MAX_CENTER, value));
  return {
    x: 0,
    y: 0,
    // Pixels per unit of the map.
    scale: 300,
    width: 0,
    height: 0,
    // Canvas pixels per CSS pixel.
    ratio: 1,
    // The scale at which the full map fits into the canvas, with room for the line of text below the map.
    get fitScale() {
      return Math.min((0.48 * this.width) / extent[0], (0.45 * this.height) / extent[1]);
    },
    get zoomLevel() {
      return this.scale / this.fitScale;
    },
    resize(width, height, ratio) {
      // If the full map was visible before the resize, it is also visible after it.
      const showsAll = !this.width || this.scale === this.fitScale;
      Object.assign(this, {width, height, ratio});
      if (showsAll) this.showAll();
    },
    showAll() {
      this.moveTo(0, 0, this.fitScale);
    },
    moveTo(x, y, scale = this.scale) {
      Object.assign(this, {x: clamp(x), y: clamp(y), scale});
    },
    moveByPixels(dx, dy) {
      this.moveTo(this.x + dx / this.scale, this.y + dy / this.scale);
    },
    // Zooms in or out. The pixel (px, py), by default the center, keeps showing the same point of the map.
    zoom(factor, px = this.width / 2, py = this.height / 2) {
      const scale = Math.min(Math.max(this.scale * factor, this.fitScale * MIN_ZOOM), this.fitScale * MAX_ZOOM);
      const change = 1 / this.scale - 1 / scale;
      this.moveTo(this.x + (px - this.width / 2) * change, this.y + (py - this.height / 2) * change, scale);
    },
    toPixelX(value) {
      return (value - this.x) * this.scale + this.width / 2;
    },
    toPixelY(value) {
      return (value - this.y) * this.scale + this.height / 2;
    },
    toMap(px, py) {
      return [this.x + (px - this.width / 2) / this.scale, this.y + (py - this.height / 2) / this.scale];
    },
  };
}
