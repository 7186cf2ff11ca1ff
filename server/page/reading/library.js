/** Preact, with the one thing that the file of the package leaves out. */

export * from "../vendor/preact.js";

export const createRef = () => ({ current: null });
