"""Names of tables and schemas that look invalid but are valid."""

ODD_BUT_FINE = [
    "it's", 'q"uote', "back`tick", "``", "two words", " led by a space", "trailed by one ",
    "日本語", "Straße", "e\u0301", "🦆", "100%20", "%2e%2e", "#", "a#1", "[x]", "*", "?",
    "{}", "{a,b}",
    "a.b", "dot.", "$HOME", "~", "-rf", "a=b", "a|b", "<x>", "^", "x" * 200, "a_", "NULL", "1",
]  # fmt: skip
