// Uploaded images by key. They are available until the tab is closed, so that the back and forward buttons work. Images
// of less than MAX_STORED bytes are also available after a reload.
import {ApiError} from './api.js';

const MAX_STORED = 2 << 20;
const uploads = new Map();

export function saveUpload(blob) {
  const key = Math.random().toString(36).slice(2, 8);
  uploads.set(key, blob);
  if (blob.size < MAX_STORED) {
    const reader = new FileReader();
    reader.onload = () => {
      try {
        sessionStorage.setItem(`nearfar-${key}`, reader.result);
      } catch {
        // The storage is full, so the image is lost at the next reload.
      }
    };
    reader.readAsDataURL(blob);
  }
  return key;
}

export function loadUpload(key) {
  if (uploads.has(key)) return uploads.get(key);
  const stored = sessionStorage.getItem(`nearfar-${key}`);
  if (!stored) throw new ApiError('This image is no longer available: choose it again.');
  const [, type, data] = stored.match(/^data:([^;]*);base64,(.*)$/);
  return new Blob([Uint8Array.from(atob(data), character => character.charCodeAt(0))], {type});
}
