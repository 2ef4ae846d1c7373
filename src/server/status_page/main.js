// Ties the parts of the page together.
import { setKey } from "./api.js";
import { startChat } from "./chat.js";
import { startStatus } from "./status.js";

const form = document.getElementById("key-form");
const field = document.getElementById("key");
const note = document.getElementById("key-note");
let isTried = false;

const status = startStatus((fault) => {
  form.hidden = false;
  if (isTried) note.textContent = `${fault.message}.`;
  field.focus();
});

form.addEventListener("submit", (event) => {
  event.preventDefault();
  setKey(field.value.trim());
  field.value = "";
  isTried = true;
  status.wake();
});

startChat();
