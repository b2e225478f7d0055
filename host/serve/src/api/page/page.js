// A chat over /v1/chat/completions, and the swarm from /v1/swarm. Whatever comes from outside is set as text.
'use strict';

const at = id => document.getElementById(id);
const SWARM_EVERY_MS = 2000;
const KEY = 'kvasir-key';

let model = '';
let talk = [];
let writing = null;

function headers(more) {
  const key = sessionStorage.getItem(KEY);
  return key ? { ...more, authorization: `Bearer ${key}` } : { ...more };
}

// The JSON of an answer; what the service says of an error is the error's text.
async function ask(path, options = {}) {
  const answer = await fetch(path, { ...options, headers: headers(options.headers) });
  if (answer.ok) return answer;
  if (answer.status === 401) at('key-form').hidden = false;
  let why = `${answer.status} ${answer.statusText}`;
  try { why = (await answer.json()).error.message; } catch { /* not ours: the status has to do */ }
  const after = answer.headers.get('retry-after');
  throw new Error(after ? `${why} (again in ${after} s)` : why);
}

function state(text, kind) {
  at('state').textContent = text;
  at('state').className = `state ${kind}`;
}

function say(kind, text) {
  const log = at('log');
  const line = document.createElement('p');
  line.className = kind;
  line.textContent = text;
  log.append(line);
  log.scrollTop = log.scrollHeight;
  return line;
}

// Yields the data of each server-sent event.
async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let waiting = '';
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (waiting + value).split('\n\n');
    waiting = parts.pop();
    for (const part of parts) if (part.startsWith('data: ')) yield part.slice(6);
  }
}

async function send(text) {
  talk.push({ role: 'user', content: text });
  say('said user', text);
  const line = say('said assistant', '');
  const begun = performance.now();
  let first = 0, usage = null, reason = '', whole = false;
  writing = new AbortController();
  at('send').textContent = 'Stop';
  try {
    const answer = await ask('/v1/chat/completions', {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      signal: writing.signal,
      body: JSON.stringify({
        model, messages: talk, stream: true, stream_options: { include_usage: true },
        temperature: Number(at('temperature').value), max_tokens: Number(at('most').value),
      }),
    });
    for await (const data of events(answer)) {
      if (data === '[DONE]') { whole = true; break; }
      const event = JSON.parse(data);
      if (event.error) throw new Error(event.error.message);
      usage = event.usage || usage;
      for (const choice of event.choices) {
        const more = choice.delta.content || '';
        if (more) {
          first = first || performance.now();
          const log = at('log');
          const follows = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
          line.append(line.textContent ? more : more.trimStart());
          if (follows) log.scrollTop = log.scrollHeight;
        }
        reason = choice.finish_reason || reason;
      }
    }
    if (!whole) throw new Error('the answer ended before it was whole');
  } catch (error) {
    if (error.name !== 'AbortError') say('said failed', error.message);
  }
  writing = null;
  at('send').textContent = 'Send';
  if (line.textContent) talk.push({ role: 'assistant', content: line.textContent });
  else line.remove();
  if (usage && first) {
    const seconds = (performance.now() - first) / 1000;
    const rate = usage.completion_tokens > 1 ? (usage.completion_tokens - 1) / seconds : 0;
    say('figures', `${usage.prompt_tokens} tokens read, ${usage.completion_tokens} written, first after `
      + `${Math.round(first - begun)} ms${rate ? `, ${rate.toFixed(1)} tokens/s` : ''}${reason === 'length' ? ', cut by length' : ''}`);
  }
}

const rate = value => value === null ? '–' : `${value < 10 ? value.toFixed(1) : Math.round(value)} tok/s`;
const milliseconds = value => value === null ? '–' : `${value < 10 ? value.toFixed(1) : Math.round(value)} ms`;
function bytes(count) {
  const units = ['B', 'kB', 'MB', 'GB', 'TB'];
  let unit = 0;
  while (count >= 1000 && unit < units.length - 1) { count /= 1000; unit += 1; }
  return `${unit ? count.toFixed(1) : count} ${units[unit]}`;
}

function show(swarm) {
  at('rate-now').textContent = rate(swarm.rates.now);
  at('rate-local').textContent = rate(swarm.rates.local);
  at('rate-swarm').textContent = rate(swarm.rates.swarm);
  at('load').textContent = `${swarm.load.running} + ${swarm.load.waiting} waiting`;
  at('no-workers').hidden = swarm.workers.length > 0;
  at('workers').replaceChildren(...swarm.workers.map(worker => card(worker, swarm)));
}

function card(worker, swarm) {
  const one = at('worker').content.cloneNode(true);
  const part = name => one.querySelector(name);
  part('.name').textContent = worker.name;
  part('.state').textContent = worker.state;
  part('.state').classList.add(worker.state === 'serving' ? 'good'
    : ['ejected', 'quarantined', 'gone'].includes(worker.state) ? 'bad' : 'soft');
  part('.why').hidden = !worker.why;
  part('.why').textContent = worker.why || '';
  const held = new Map(worker.holds.map(({ layer, experts }) => [layer, experts]));
  for (let layer = 0; layer < swarm.layers; layer += 1) {
    const box = document.createElement('span');
    const experts = held.get(layer) || 0;
    if (experts) box.className = experts >= swarm.experts_per_layer ? 'all' : 'some';
    box.title = `layer ${layer}: ${experts} of ${swarm.experts_per_layer} experts`;
    part('.layers').append(box);
  }
  part('.layers').setAttribute('aria-label', `holds experts of ${held.size} of ${swarm.layers} layers`);
  part('.trip').textContent = `${milliseconds(worker.round_trip_ms)}, p99 ${milliseconds(worker.round_trip_p99_ms)}`;
  part('.bytes').textContent = bytes(worker.held_bytes);
  part('.calls').textContent = `${worker.calls} of ${worker.rows} rows, ${worker.missed} missed`;
  part('.checked').textContent = `${worker.checked}, ${worker.wrong} wrong`;
  part('.credit').textContent = `${(worker.credit_nanokvr / 1e9).toFixed(5)} KVR for ${bytes(worker.countersigned_bytes)}`;
  return one;
}

async function watch() {
  for (;;) {
    try {
      if (!document.hidden) {
        if (!model) await connect();
        show(await (await ask('/v1/swarm')).json());
        state('ready', 'good');
      }
    } catch (error) {
      state(error.message, 'bad');
    }
    await new Promise(done => setTimeout(done, SWARM_EVERY_MS));
  }
}

async function connect() {
  const models = await (await ask('/v1/models')).json();
  model = models.data[0].id;
  at('model').textContent = `${model}, context ${models.data[0].context_length}`;
  at('key-form').hidden = true;
}

at('ask').addEventListener('submit', event => {
  event.preventDefault();
  if (writing) { writing.abort(); return; }
  const text = at('text').value;
  if (!text.trim() || !model) return;
  at('text').value = '';
  send(text);
});
at('text').addEventListener('keydown', event => {
  if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    if (!writing) at('ask').requestSubmit();
  }
});
at('anew').addEventListener('click', () => {
  if (writing) writing.abort();
  talk = [];
  at('log').replaceChildren();
  at('text').focus();
});
at('key-form').addEventListener('submit', event => {
  event.preventDefault();
  sessionStorage.setItem(KEY, at('key').value.trim());
  at('key').value = '';
  model = '';
});
watch();
