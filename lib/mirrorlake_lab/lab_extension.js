// The JupyterLab extension of mirrorlake: cards that open tools and lessons, alternative texts and a
// dark theme for charts, and a line with Spark's progress below a cell. Lab loads this script as it
// is, without a build. Python prepends CARDS, a list of {path, label, title, category}.
(() => {
  const shared = {};
  const STYLE = `
    body[data-jp-theme-light='false'] .mirrorlake-figure {filter: invert(.88) hue-rotate(180deg)}
    .mirrorlake-progress {color: var(--jp-ui-font-color2); font-size: var(--jp-ui-font-size1);
      padding: 2px 0 2px calc(var(--jp-cell-prompt-width) + 12px)}`;

  async function load(name) {
    const versions = shared.scope[name];
    const factory = await versions[Object.keys(versions)[0]].get();
    return factory();
  }

  function addCards(app, launcher, icon) {
    app.commands.addCommand('mirrorlake:open', {
      label: args => args.label,
      caption: args => args.title,
      icon,
      execute: args => app.commands.execute('docmanager:open', {path: args.path}),
    });
    CARDS.forEach((args, rank) =>
      launcher.add({command: 'mirrorlake:open', args, category: args.category, rank}));
  }

  // Lab adds no alternative text to images: use the one in a chart's metadata, else the notebook's name.
  function describePictures(app, rendermime) {
    const base = rendermime.getFactory('image/png');
    rendermime.addFactory({
      safe: true,
      mimeTypes: ['image/png'],
      createRenderer: options => {
        const widget = base.createRenderer(options);
        const render = widget.renderModel.bind(widget);
        widget.renderModel = async model => {
          await render(model);
          const picture = widget.node.querySelector('img');
          const known = model.metadata['image/png'] || {};
          const place = app.shell.currentWidget?.title.label || 'this notebook';
          picture.alt = known.alt || `A figure in ${place}`;
          picture.classList.toggle('mirrorlake-figure', Boolean(known.alt));
        };
        return widget;
      },
    }, 90);
  }

  function showProgress(panel, said) {
    const cell = panel.content.widgets.find(
      one => one.outputArea?.future?.msg?.header?.msg_id === said.cell);
    if (!cell) return undefined;
    let line = cell.node.querySelector('.mirrorlake-progress');
    if (!line) {
      line = document.createElement('div');
      line.className = 'mirrorlake-progress';
      line.setAttribute('role', 'status');
      cell.node.appendChild(line);
    }
    line.textContent = said.text;
    return line;
  }

  function followKernels(tracker) {
    const follow = (_, panel) => {
      const register = () => {
        panel.sessionContext.session?.kernel?.registerCommTarget(
          'mirrorlake.progress', (comm, opened) => {
            let line = showProgress(panel, opened.content.data);
            comm.onMsg = message => { line = showProgress(panel, message.content.data) || line; };
            comm.onClose = () => line?.remove();
          });
      };
      panel.sessionContext.kernelChanged.connect(register);
      register();
    };
    tracker.forEach(panel => follow(tracker, panel));
    tracker.widgetAdded.connect(follow);
  }

  async function plugins() {
    const [{ILauncher}, {IRenderMimeRegistry}, {INotebookTracker}, {notebookIcon}] =
      await Promise.all(['launcher', 'rendermime', 'notebook', 'ui-components']
        .map(name => load(`@jupyterlab/${name}`)));
    const style = document.createElement('style');
    style.textContent = STYLE;
    document.head.appendChild(style);
    return [
      {id: 'mirrorlake:cards', autoStart: true, requires: [ILauncher],
        activate: (app, launcher) => addCards(app, launcher, notebookIcon)},
      {id: 'mirrorlake:figures', autoStart: true, requires: [IRenderMimeRegistry],
        activate: describePictures},
      {id: 'mirrorlake:progress', autoStart: true, requires: [INotebookTracker],
        activate: (_, tracker) => followKernels(tracker)},
    ];
  }

  window._JUPYTERLAB = window._JUPYTERLAB || {};
  window._JUPYTERLAB.mirrorlake = {
    init: scope => { shared.scope = scope; },
    get: async () => { const found = await plugins(); return () => ({__esModule: true, default: found}); },
  };
})();
