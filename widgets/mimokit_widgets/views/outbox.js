// What the user does, on its way to Python: one message at a time, newest text of a field only.

import { freshId } from "mimokit/dom.js";

const PATIENCE = 1500;
const AFTER_THE_PICTURE = 30;

export class Outbox {
  /** send(message) sends; late(boolean) is called when Python is slow to answer. */
  constructor(send, late) {
    this.send = send;
    this.late = late;
    this.waiting = [];
    this.name = freshId("view"); // one model may have several views, each with an outbox
    this.sent = 0;
    this.flying = null;
  }

  /** Send a message or hold it back; false where it has no answer. What it does may be seen already. */
  put(message, seen) {
    const last = this.waiting[this.waiting.length - 1];
    const same = last?.type === message.type && ((message.type === "edit"
      && last.path.join("\n") === message.path.join("\n")) || (message.type === "frames"
      && last.field === message.field && last.sample === message.sample));
    if (same) this.waiting.pop();
    this.waiting.push(message);
    if (!seen) return this.next();
    setTimeout(() => this.next(), AFTER_THE_PICTURE); // the kernel would take its core
    return true;
  }

  next() {
    if (this.flying !== null || !this.waiting.length) return true;
    this.sent += 1;
    this.flying = `${this.name}-${this.sent}`;
    this.timer = setTimeout(() => this.late(true), PATIENCE);
    const message = this.waiting.shift();
    this.type = message.type;
    if (this.send({ ...message, serial: this.flying }) !== false) return true;
    clearTimeout(this.timer); // it has no answer, on a saved page; others may have one
    this.flying = null;
    return false;
  }

  /** Nobody is there to answer. */
  close() {
    clearTimeout(this.timer);
    this.late(false);
  }

  /** Python has handled a message, of this view or of another. */
  handled(serial) {
    if (serial !== this.flying) return;
    this.close();
    this.flying = null;
    this.next();
  }

  /** Is a message of a type on its way, so that what Python says of it with a serial is older? */
  awaits(type, serial) {
    return this.waiting.some((each) => each.type === type)
      || (this.flying !== null && this.flying !== serial && this.type === type);
  }

  /** Is a newer text of a field still on its way? */
  pending(path) {
    const key = path.join("\n");
    return this.waiting.some((each) => each.type === "edit" && each.path.join("\n") === key);
  }
}
