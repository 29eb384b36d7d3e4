"""Text as a string of another language."""


def groovy_string(text: str) -> str:
    """Return a string of Groovy in single quotes, in which nothing is replaced."""
    return _quoted(text, "'")


def yaml_string(text: str) -> str:
    """Return a string of YAML in double quotes."""
    return _quoted(text, '"')


def _quoted(text: str, quote: str) -> str:
    """Return a text in quotes, with the escapes that both languages have."""
    escapes = {"\\": "\\\\", quote: f"\\{quote}", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    signs = (
        escapes.get(sign) or (sign if sign.isprintable() or ord(sign) > 0xFFFF else f"\\u{ord(sign):04x}")
        for sign in text
    )
    return f"{quote}{''.join(signs)}{quote}"
