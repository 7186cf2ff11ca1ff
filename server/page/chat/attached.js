/** Files beside a message: texts as {name, text}, images and PDFs as {name, url}, a data URL that needs no further request. */

import { html } from "../vendor/preact.js";
import { isImage } from "../chats/files.js";
import { tell } from "../shared/notice.js";

const MIB = 2 ** 20;
/** What is larger is drawn again, smaller: all images of a conversation are sent with each of its messages. */
const LARGEST_IMAGE_BYTES = 2 * MIB;
const LONGEST_SIDE = 2048;
export const LIMITS = "PDFs, text files of up to 1 MiB";
const NUL = "\0";
const IMAGE_TYPES = ["image/png", "image/jpeg", "image/webp", "image/gif"];

function urlOf(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(blob);
  });
}

async function readImage(file) {
  const bitmap = await createImageBitmap(file);
  const scale = Math.min(1, LONGEST_SIDE / Math.max(bitmap.width, bitmap.height));
  if (scale === 1 && file.size <= LARGEST_IMAGE_BYTES) return urlOf(file);
  const canvas = new OffscreenCanvas(Math.max(1, Math.round(bitmap.width * scale)), Math.max(1, Math.round(bitmap.height * scale)));
  const drawing = canvas.getContext("2d");
  // A JPEG has nothing transparent.
  drawing.fillStyle = "white";
  drawing.fillRect(0, 0, canvas.width, canvas.height);
  drawing.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  return urlOf(await canvas.convertToBlob({ type: "image/jpeg", quality: 0.92 }));
}

async function readText(file) {
  const text = await file.text();
  if (text.includes(NUL) || text.includes("\ufffd")) throw new Error("is neither a PDF, a text file in UTF-8 nor an image (PNG, JPEG, WEBP, GIF).");
  return text;
}

/** Return files as they are kept; say which cannot be attached. sees: whether the model sees images. */
export async function readFiles(files, sees) {
  const found = [];
  for (const file of files) {
    const [isPicture, isPdf] = [IMAGE_TYPES.includes(file.type), file.type === "application/pdf"];
    const most = isPicture ? Infinity : isPdf ? 16 : 1;
    try {
      if (isPicture && !sees) throw new Error("is an image, and this model reads text only. Serve one that sees, such as mlx-community/Qwen3-VL-4B-Instruct-4bit.");
      if (file.size > most * MIB) throw new Error(`is larger than ${most} MiB. Attach the part of it that matters.`);
      found.push({ name: file.name, ...(isPicture || isPdf ? { url: await (isPicture ? readImage : urlOf)(file) } : { text: await readText(file) }) });
    } catch (fault) {
      // The browser's own words say nothing to a reader.
      tell(`${file.name} ${fault instanceof DOMException ? "is an image that cannot be read." : fault.message}`);
    }
  }
  return found;
}

/** The files of a message that is written, each with a button that takes it away. onChange: called with those that are left. */
export const Attached = ({ files, onChange }) => files.length > 0 && html`<ul class="files" aria-label="Attached">${files.map((file, at) => html`
  <li>${isImage(file) && html`<img src=${file.url} alt="" />`}${file.name}
    <button type="button" class="quiet" aria-label=${`Remove ${file.name}`} onClick=${() => onChange(files.filter((_, i) => i !== at))}>✕</button></li>`)}</ul>`;
