/** What a reader can do in a conversation. */

import { change, chats } from "../chats/store.js";
import { path, showing, versions, withMessage } from "../chats/tree.js";
import { tell, withdraw } from "../shared/notice.js";
import { newId, plural } from "../shared/words.js";
import { faultOf, requestOf, said, unanswered } from "../runs/request.js";
import { ELSEWHERE, run } from "../runs/run.js";
import { parametersOf } from "./parameters.js";

/** The models as they are now; the tab that shows them sets them. */
export const setting = { models: [], onFault: null };

const bodyOf = (chat, messages, continued) => {
  const history = said(continued ? [...messages, continued] : messages);
  const body = { ...requestOf(setting.models, parametersOf(chat), history), draft: { trace: true } };
  // A schema is for a whole answer, not for the rest of one.
  return continued ? { ...body, continue_final_message: true, response_format: undefined } : body;
};

async function answer(chatId, fields) {
  const fault = faultOf(parametersOf(chats.value.get(chatId)));
  if (fault) return tell(fault);
  const isDone = await run(chatId, { ...fields, bodyOf, onFault: setting.onFault });
  if (!isDone) tell(ELSEWHERE);
}

/** Say something at the end of what is shown, and ask for the answer once no call waits for its result. */
export async function send(chatId, content, files = []) {
  withdraw();
  const shown = chats.value.get(chatId);
  const before = shown ? path(shown) : [];
  const [call] = unanswered(before);
  const fields = call ? { role: "tool", tool_call_id: call.id } : { role: "user" };
  const message = { id: newId(), parent: before.at(-1)?.id ?? null, content, files, ...fields };
  // Another tab may have deleted it.
  await change(chatId, (chat) => withMessage({ ...chat, deletedAt: null }, message));
  if (unanswered([...before, message]).length === 0) await answer(chatId, { parent: message.id });
}

/** Do what begins another branch in the place of a message, and offer the one before. */
async function branch(chatId, message, done, what) {
  const before = chats.value.get(chatId);
  const shown = path(before);
  const lost = shown.length - shown.findIndex(({ id }) => id === message.id);
  await done();
  const undo = () => change(chatId, (chat) => showing(chat, before.leaf));
  tell(`${what}. ${plural(lost, "message")} of the earlier version ${lost === 1 ? "is" : "are"} kept.`, undo, true);
}

/** Put other words and files in the place of a message. What followed stays in the branch beside it. The user's are answered. */
export async function edit(chatId, message, content, files) {
  const isAnswer = message.role === "assistant";
  const next = { ...message, id: newId(), content, files, ...(isAnswer && { trace: [], timings: null, firstMs: null, fault: undefined, end: "edited" }) };
  await branch(chatId, message, () => change(chatId, (chat) => withMessage(chat, next)), `You changed ${isAnswer ? "an answer" : "a message"}`);
  if (!isAnswer) await answer(chatId, { parent: next.id });
}

/** Ask for another answer in the place of one. */
export const retry = (chatId, message) => answer(chatId, { parent: message.parent });

/** Let the model go on with an answer that was stopped or cut off. */
export const goOn = (chatId, message) => answer(chatId, { parent: message.parent, continued: message });

/** Show the version of a message before or after the one that is shown. */
export const turnTo = (chatId, message, step) =>
  change(chatId, (chat) => {
    const ids = versions(chat, message);
    const next = ids[ids.indexOf(message.id) + step];
    return next ? showing(chat, next) : chat;
  });

/** Ask for the answer that a conversation lacks, because its last message is the user's. */
export const answerLast = (chatId, message) => answer(chatId, { parent: message.id });

