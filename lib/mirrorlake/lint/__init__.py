"""The linter: what is wrong with a landing zone, before a mirror stumbles over it."""
