/** The conversations as this browser keeps them: one record each in IndexedDB, the same for all of its tabs.
 *
 * A record changes only inside a transaction, from what it is at that time, so tabs cannot overwrite each other.
 */

const NAME = "reprise";
const VERSION = 1;
const CHATS = "chats";

let opened = null;

function open() {
  opened ??= new Promise((resolve, reject) => {
    const request = indexedDB.open(NAME, VERSION);
    request.onupgradeneeded = () => request.result.createObjectStore(CHATS, { keyPath: "id" });
    request.onerror = () => reject(request.error);
    request.onsuccess = () => {
      // A newer page in another tab may need another version.
      request.result.onversionchange = () => request.result.close();
      resolve(request.result);
    };
  });
  return opened;
}

/** Run one transaction. made: called with the store and a function that takes the result. */
async function transact(mode, made) {
  const database = await open();
  return new Promise((resolve, reject) => {
    let result;
    const transaction = database.transaction(CHATS, mode, { durability: "relaxed" });
    transaction.oncomplete = () => resolve(result);
    transaction.onabort = transaction.onerror = () => reject(transaction.error);
    made(transaction.objectStore(CHATS), (value) => (result = value));
  });
}

const ask = (asked) => transact("readonly", (store, take) => (asked(store).onsuccess = ({ target }) => take(target.result)));
export const readAll = () => ask((store) => store.getAll());
export const read = (id) => ask((store) => store.get(id));

/** Change a record. made: gets it, undefined if there is none; returns what to keep, or null for none. */
export const changeRecord = (id, made) =>
  transact("readwrite", (store, take) => {
    store.get(id).onsuccess = ({ target }) => {
      const next = made(target.result);
      if (next) store.put(next);
      else store.delete(id);
      take(next);
    };
  });
