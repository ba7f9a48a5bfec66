// The server: requests, its event stream, and messages about the connection.
"use strict";

(() => {
  const SILENT_MS = 8000; // silence of the server after which a message is shown
  const byId = (id) => document.getElementById(id);
  let ended = false;
  let lost = 0; // timer

  async function ask(path) {
    let answer;
    try {
      answer = await fetch(path, { credentials: "same-origin" });
    } catch {
      throw new Error(ended ? "the server has stopped, and this was not loaded before" : "the server does not answer");
    }
    const found = await answer.json().catch(() => ({ error: `the server answered ${answer.status}` }));
    if (!answer.ok) throw new Error(found.error || `the server answered ${answer.status}`);
    return found;
  }

  function link(text, state) {
    byId("link-text").textContent = text;
    byId("link").dataset.state = state;
  }

  const clock = () => new Date().toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });

  function banner(text) {
    byId("ended").hidden = !text;
    byId("ended").textContent = text;
  }

  // `heard(news)` gets the cards of runs that changed; `parting()` is called when the server ends.
  function listen(heard, parting) {
    const source = new EventSource("/api/events");
    source.addEventListener("runs", (event) => heard(JSON.parse(event.data)));
    source.addEventListener("end", () => {
      ended = true;
      source.close();
      clearTimeout(lost);
      link("ended", "off");
      banner(`The server stopped at ${clock()}, and the page shows the state at that time. Start it again with millpond watch.`);
      parting();
    });
    source.onopen = () => {
      clearTimeout(lost);
      lost = 0;
      banner("");
      link("live", "on");
    };
    source.onerror = () => {
      if (ended) return;
      if (source.readyState === EventSource.CLOSED) {
        link("ended", "off");
        clearTimeout(lost);
        const then = clock();
        ask("/api/runs").then(
          () => banner("This server has too many open pages. Close one of them and reload this one."),
          () => banner(`The server of this page stopped before ${then}. Open the address that millpond watch printed last.`));
        return;
      }
      link("reconnecting", "off");
      const since = clock();
      lost ||= setTimeout(() => banner(`The server has not answered since ${since}. The page shows the state at that time and continues when the server is back.`), SILENT_MS);
    };
  }

  Object.assign(window.millpond, { ask, listen, byId });
})();
