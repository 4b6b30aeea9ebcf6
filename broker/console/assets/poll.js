// Questions that are asked again and again while a page is shown.

/**
 * Ask now, and again `pauseMs` after each answer, until the signal aborts; not while nobody sees the page. What the first
 * question fails with goes to `fail`; later failures leave what is shown, as the bar tells of the cluster's state.
 */
export async function poll(question, pauseMs, signal, fail) {
  let asked = false;
  while (!signal.aborted) {
    try {
      if (!asked || !document.hidden) {
        await question();
        asked = true;
      }
    } catch (error) {
      if (signal.aborted) return;
      if (!asked) {
        fail(error);
        if (!error.retryMayHelp) return;
      }
    }
    await sleep(pauseMs, signal);
    if (asked) document.querySelector("#content .page > .failure")?.remove();
  }
}

function sleep(ms, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      resolve();
    });
  });
}
