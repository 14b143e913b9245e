// Colors of classes as [red, green, blue].
// hues by the golden angle, so that classes that come together differ; three lightnesses
const palettes = new Map();
export function palette(count, dark) {
  const key = `${count} ${dark}`;
  if (!palettes.has(key))
    palettes.set(
      key,
      Array.from({length: count}, (_, i) =>
        fromHsl(
          (i * 137.508) % 360,
          [0.72, 0.58, 0.85][i % 3],
          (dark ? [0.64, 0.72, 0.56] : [0.44, 0.36, 0.52])[i % 3],
        ),
      ),
    );
  return palettes.get(key);
}
function fromHsl(hue, saturation, light) {
  const reach = saturation * Math.min(light, 1 - light);
  return [0, 8, 4].map(n => {
    const k = (n + hue / 30) % 12;
    return Math.round(255 * (light - reach * Math.max(-1, Math.min(k - 3, 9 - k, 1))));
  });
}
export const css = ([r, g, b]) => `rgb(${r} ${g} ${b})`;
export const mix = (a, b, share) => a.map((value, i) => Math.round(value * (1 - share) + b[i] * share));
export function hex(text) {
  const digits = text.trim().replace('#', '');
  const whole = digits.length === 3 ? [...digits].map(each => each + each).join('') : digits;
  return [0, 2, 4].map(i => parseInt(whole.slice(i, i + 2), 16));
}
