"""How a model is loaded, beside its name."""

from dataclasses import dataclass
from pathlib import Path

from reprise.config.settings import Settings


@dataclass(frozen=True)
class LoadOptions:
    """How a model is loaded.

    trusts_code: run Python code that comes with the model, if the model requires it.
    cache_folder: keeps tables of tokens, and findings about the model, between starts.
    chat_template, mask_token_id: take the place of the model's own. Only a WeDLM model has a mask token.
    adapter: the folder of a LoRA adapter that is added to the model.
    sees: also load the model's tower, if it has one that is known.
    """

    trusts_code: bool = False
    cache_folder: Path | None = None
    chat_template: str | None = None
    mask_token_id: int | None = None
    adapter: str | None = None
    sees: bool = False

    @classmethod
    def of(cls, settings: Settings) -> "LoadOptions":
        """Return the options that the settings set for every model: trusts_code and cache_folder."""
        # Where costs are kept, tables of tokens are too.
        file = settings.calibration_file
        return cls(settings.trust_remote_code, Path(file).parent if file else None)


NO_OPTIONS = LoadOptions()
