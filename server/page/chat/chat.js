/** Chat with a model. The conversations stay in this browser. */

import { html, useCallback, useState } from "../vendor/preact.js";
import { chats, isRead, shown, showNew } from "../chats/store.js";
import { path } from "../chats/tree.js";
import { useObserved } from "../shared/observed.js";
import { useStored } from "../shared/stored.js";
import { compact } from "../shared/words.js";
import { numTokens } from "../runs/answer.js";
import { busy } from "../runs/locks.js";
import { chosen, faultOf, unanswered, warningOf } from "../runs/request.js";
import { runs, stop } from "../runs/run.js";
import { send, setting } from "./actions.js";
import { Composer, useEscape } from "./composer.js";
import { Conversation } from "./conversation.js";
import { ChatList } from "./list.js";
import { Parameters, parametersOf, setParameters } from "./parameters.js";
import { Samples } from "./samples.js";

/** How much of the model's context a chat takes. */
function Context({ used, limit }) {
  if (!used || !limit) return null;
  const words = `${used.toLocaleString("en")} of the ${limit.toLocaleString("en")} tokens that the model reads at once`;
  return html`<span class=${`context ${used > 0.9 * limit ? "full" : ""}`} title=${words}>
    <progress aria-label=${words} max=${limit} value=${used}></progress> ${compact(used)} of ${compact(limit)}<span class="unit"> tokens</span></span>`;
}

export function Chat({ models, onFault }) {
  const [showsOrigins, setShowsOrigins] = useStored("reprise.origins", false);
  const [isListOpen, setListOpen] = useState(false);
  const chatId = useObserved(shown);
  const chat = useObserved(chats).get(chatId);
  const parameters = parametersOf(chat);
  const run = useObserved(runs, true).get(chatId);
  const isElsewhere = useObserved(busy).has(chatId) && !run;
  const isReady = useObserved(isRead) && models.length > 0;
  Object.assign(setting, { models, onFault });
  const model = models.find(({ id }) => id === chosen(models, parameters.model));
  const sees = !!model?.vision;
  const said = chat ? path(chat) : [];
  const [call] = unanswered(said);
  const used = numTokens(run?.answer) || numTokens(said.findLast(({ role }) => role === "assistant"));
  const fault = faultOf(parameters);
  const warn = (text, files) => fault || warningOf(model, parameters, [...said, { content: text, files }]);
  const onStop = useCallback(() => stop(chatId), [chatId]);
  useEscape(run ? onStop : null);
  const close = () => setListOpen(false);
  return html`<section class=${`chat ${isListOpen ? "list-open" : ""}`}>
    <${ChatList} onPick=${close} />
    <button class="shade" aria-label="Close the list" tabindex="-1" onClick=${close}></button>
    <div class="pane">
      <div class="chat-bar">
        <button class="list-button" aria-expanded=${isListOpen} onClick=${() => setListOpen(!isListOpen)}>Chats</button>
        <${Parameters} models=${models} value=${parameters} onChange=${(next) => setParameters(chatId, next)} />
        <button class="list-button" onClick=${showNew}>New</button>
      </div>
      <${Conversation} key=${chatId} chat=${chat} chatId=${chatId} run=${run} isBusy=${!!run || isElsewhere} showsOrigins=${showsOrigins}>
        ${isReady && !fault && html`<${Samples} model=${chosen(models, parameters.model)} onPick=${(text) => send(chatId, text)} />`}
      <//>
      <div class="foot">
        ${isElsewhere && html`<p class="soft" role="status">Another tab of this browser writes in this conversation.</p>`}
        <${Composer} key=${chatId} name=${chatId} label=${call ? `Result of ${call.name}` : "Message"} isBusy=${!!run} isBlocked=${isElsewhere || !isReady || fault}
          onSend=${(text, files) => send(chatId, text, files)} onStop=${onStop} canAttach=${!call} sees=${sees} warn=${warn}>
          <label class="toggle" title="Colour each part of the text by what drafted it"><input type="checkbox" checked=${showsOrigins} onChange=${(event) => setShowsOrigins(event.target.checked)} /> Show sources</label>
          <${Context} used=${used} limit=${model?.context_length} />
        <//>
      </div>
    </div>
  </section>`;
}
