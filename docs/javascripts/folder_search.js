"use strict";
// Where the site is opened as a folder, browsers start no worker: the search runs in a hidden frame instead.
if (location.protocol === "file:") window.Worker = class extends EventTarget {
  #frame = document.createElement("iframe");
  #loaded;

  constructor(url) {
    super();
    this.#frame.hidden = true;
    document.documentElement.append(this.#frame);
    const { contentWindow, contentDocument } = this.#frame;
    contentWindow.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }));
    const script = contentDocument.createElement("script");
    script.src = url;
    this.#loaded = new Promise(resolve => script.addEventListener("load", resolve));
    contentDocument.documentElement.append(script);
  }

  postMessage(data) {
    const { contentWindow } = this.#frame;
    this.#loaded.then(() => contentWindow.dispatchEvent(new contentWindow.MessageEvent("message", { data })));
  }

  terminate() {
    this.#frame.remove();
  }
};
