/** Chat with a model. The conversations stay in this browser. */

import { html, useCallback, useState } from "../vendor/preact.js";
import { chats, isRead, shown, showNew } from "../chats/store.js";
import { path } from "../chats/tree.js";
import { useObserved } from "../shared/observed.js";
import { useStored } from "../shared/stored.js";
import { busy } from "../runs/locks.js";
import { chosen, unanswered, warningOf } from "../runs/request.js";
import { runs, stop } from "../runs/run.js";
import { send, setting } from "./actions.js";
import { Composer, useEscape } from "./composer.js";
import { Conversation } from "./conversation.js";
import { ChatList } from "./list.js";
import { Parameters, parametersOf, setParameters } from "./parameters.js";
import { Samples } from "./samples.js";

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
  const [call] = chat ? unanswered(path(chat)) : [];
  const warn = (text, files) => warningOf(model, parameters, [...(chat ? path(chat) : []), { content: text, files }]);
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
        ${isReady && html`<${Samples} model=${chosen(models, parameters.model)} onPick=${(text) => send(chatId, text)} />`}
      <//>
      <div class="foot">
        ${isElsewhere && html`<p class="soft" role="status">Another tab of this browser writes in this conversation.</p>`}
        <${Composer} key=${chatId} name=${chatId} label=${call ? `Result of ${call.name}` : "Message"} isBusy=${!!run} isBlocked=${isElsewhere || !isReady}
          onSend=${(text, files) => send(chatId, text, files)} onStop=${onStop} canAttach=${!call} sees=${sees} warn=${warn}>
          <label class="toggle" title="Colour each part of the text by what drafted it"><input type="checkbox" checked=${showsOrigins} onChange=${(event) => setShowsOrigins(event.target.checked)} /> Show sources</label>
        <//>
      </div>
    </div>
  </section>`;
}
