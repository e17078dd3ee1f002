"""Run the command line as `python -m mirrorlake.cli`."""

from mirrorlake.cli.main import main

main()
