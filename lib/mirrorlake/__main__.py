"""Run the command line as `python -m mirrorlake`."""

from mirrorlake.cli.main import main

main()
