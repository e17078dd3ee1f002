"""The command line, a module a group of commands: thin calls into the library."""
