// Colors as [red, green, blue].
const palettes = new Map();

// Returns one color per class. From class to class, the hue advances by the golden angle, and saturation and lightness
// cycle through three values, so that consecutive classes look different.
export function palette(count, isDark) {
  const key = `${count} ${isDark}`;
  if (!palettes.has(key))
    palettes.set(
      key,
      Array.from({length: count}, (_, i) =>
        fromHsl(
          (i * 137.508) % 360,
          [0.72, 0.58, 0.85][i % 3],
          (isDark ? [0.64, 0.72, 0.56] : [0.44, 0.36, 0.52])[i % 3],
        ),
      ),
    );
  return palettes.get(key);
}
function fromHsl(hue, saturation, lightness) {
  const amplitude = saturation * Math.min(lightness, 1 - lightness);
  return [0, 8, 4].map(n => {
    const k = (n + hue / 30) % 12;
    return Math.round(255 * (lightness - amplitude * Math.max(-1, Math.min(k - 3, 9 - k, 1))));
  });
}
export const toCss = ([red, green, blue]) => `rgb(${red} ${green} ${blue})`;
export const mix = (a, b, share) => a.map((value, i) => Math.round(value * (1 - share) + b[i] * share));
export function fromHex(text) {
  const digits = text.trim().replace('#', '');
  const full = digits.length === 3 ? [...digits].map(digit => digit + digit).join('') : digits;
  return [0, 2, 4].map(i => parseInt(full.slice(i, i + 2), 16));
}
