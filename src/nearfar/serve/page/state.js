// What every view needs of the server, asked for once.
import {get} from './api.js';

export const state = {info: null, classes: [], names: new Map()};

export async function load() {
  [state.info, state.classes] = await Promise.all([get('/api/info'), get('/api/classes')]);
  state.names = new Map(state.classes.map(each => [each.label, each.name]));
}

export const labelOf = name => state.classes.find(each => each.name.toLowerCase() === name.trim().toLowerCase())?.label;
