"""Find a language model, or say why there is none."""

from importlib.util import find_spec
from typing import TYPE_CHECKING

from leadline.core.errors import MissingExtra

if TYPE_CHECKING:
    from leadline.interfaces.chat.model import OllamaModel


def reach_model(name: str | None = None, host: str | None = None) -> "tuple[OllamaModel | None, str]":
    """Return the model and where it answers, or None and why there is no model.

    Args:
        name: Name of a model; that of ``LEADLINE_CHAT_MODEL`` or the usual one by default.
        host: Address of the Ollama server; that of ``OLLAMA_HOST`` or of this machine by default.

    Raises:
        MissingExtra: a model or server was named, but the client of Ollama is not installed.
        ModelUnavailable: the model or server that was named cannot be used.
    """
    is_named = bool(name or host)
    if find_spec("ollama") is None:
        if is_named:
            raise MissingExtra("leadline chat with a model", "chat")
        return None, "the package ollama is not installed (pip install 'leadline[chat]')"
    from leadline.interfaces.chat.model import ModelUnavailable, OllamaModel  # noqa: PLC0415 - an optional extra

    try:
        model = OllamaModel(name or "", host or "")
        model.check()
    except ModelUnavailable as error:
        if is_named:
            raise
        return None, str(error)
    return model, f"{model.name} on {model.host}"


def system_message() -> str:
    """Return what a model is told first."""
    from leadline.interfaces.chat.model import SYSTEM_MESSAGE  # noqa: PLC0415 - an optional extra

    return SYSTEM_MESSAGE
