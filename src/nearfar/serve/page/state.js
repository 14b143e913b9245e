// Data that every view needs. It is loaded from the server once.
import {getJson} from './api.js';

export const state = {info: null, classes: [], classNames: new Map()};

export async function loadState() {
  [state.info, state.classes] = await Promise.all([getJson('/api/info'), getJson('/api/classes')]);
  state.classNames = new Map(state.classes.map(item => [item.label, item.name]));
}

export const nameOf = label => state.classNames.get(label) ?? `class ${label}`;
export const labelOf = name => state.classes.find(item => item.name.toLowerCase() === name.trim().toLowerCase())?.label;
export const isTrained = item => item.split === 'train';
