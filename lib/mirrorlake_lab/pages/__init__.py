"""Pages that render a lake in Lab and as HTML: explorer, monitor page, publish form."""
